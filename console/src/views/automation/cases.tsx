import fields from 'fields:createCase'
import { Badge, Group, Text } from '@mantine/core'
import type { Case, CaseInput } from '@muster/client'
import { createCase, listCases } from '@muster/client/operations'
import { IconBriefcase, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api, POLL_MS } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.cases

const STATUSES = ['open', 'in_progress', 'waiting', 'resolved', 'closed'] as const
const PRIORITIES = ['urgent', 'high', 'normal', 'low'] as const
const STATUS_COLORS = { open: 'blue', in_progress: 'indigo', waiting: 'orange', resolved: 'teal', closed: 'gray' }

/** The status of a case, its priority where that is not the normal one. */
export function CaseBadges({ record: { status, priority } }: { record: Pick<Case, 'status' | 'priority'> }) {
  return (
    <Group gap={6}>
      <Badge variant="dot" color={STATUS_COLORS[status]}>
        {texts.statuses[status]}
      </Badge>
      {priority !== 'normal' && (
        <Badge variant={priority === 'urgent' ? 'filled' : 'default'} color="red.9">
          {texts.priorities[priority]}
        </Badge>
      )}
    </Group>
  )
}

const caseColumns = (projectId: string): Column<Case>[] => [
  {
    title: texts.title,
    isWide: true,
    cell: ({ id, number, title, subject }) => (
      <>
        <RecordLink to={`/p/${projectId}/cases/${id}`}>
          #{number} {visible(title)}
        </RecordLink>
        {subject && (
          <Text size="sm" c="dimmed" lineClamp={1}>
            {visible(`${subject.type} ${subject.label ?? subject.id}`)}
          </Text>
        )}
      </>
    ),
  },
  { title: strings.status, cell: record => <CaseBadges record={record} /> },
  { title: texts.assignee, cell: ({ assignee }) => (assignee ? visible(assignee) : strings.none) },
  { title: texts.due, cell: ({ due_at }) => <When at={due_at} /> },
  { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
]

/** Cases of a project. */
export function Cases() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Case>(
    ['cases', projectId],
    async ({ q, status, priority }, bounds, signal) =>
      listCases(
        api,
        {
          project_id: projectId,
          q,
          status: STATUSES.filter(each => each === status),
          priority: PRIORITIES.filter(each => each === priority),
          ...bounds,
        },
        { signal },
      ).page(),
    { pollMs: POLL_MS },
  )
  const columns = caseColumns(projectId)
  const create = isAllowed(createCase) && (
    <FormButton label={texts.create} leftSection={<IconPlus size={16} />} form={close => <CaseForm onDone={close} />} />
  )
  return (
    <Page title={strings.nav.cases} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.cases}
        list={list}
        operation={listCases}
        columns={columns}
        fields={
          <>
            <SearchField label={texts.search} />
            <ChoiceField
              name="status"
              label={strings.status}
              choices={STATUSES.map(value => ({ value, label: texts.statuses[value] }))}
            />
            <ChoiceField
              name="priority"
              label={texts.priority}
              choices={PRIORITIES.map(value => ({ value, label: texts.priorities[value] }))}
            />
          </>
        }
        view="cases"
        empty={
          <Notice icon={<IconBriefcase />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function CaseForm({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  return (
    <CommandForm
      label={strings.create}
      schema={fields}
      only={[
        'title',
        'description',
        'priority',
        'assignee',
        'due_at',
        'subject',
        'fields',
        'external_id',
        'playbook_id',
        'start_execution',
      ]}
      run={async values => createCase(api, { ...(values as CaseInput), project_id: projectId })}
      stale={[['cases', projectId]]}
      onResult={({ id }) => void navigate({ to: `/p/${projectId}/cases/${id}` })}
      onDone={onDone}
    />
  )
}
