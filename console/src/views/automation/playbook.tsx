import fields from 'fields:updatePlaybook'
import { Badge, Group, Stack, Text, Timeline } from '@mantine/core'
import type { Playbook, PlaybookExecution, PlaybookPatch, PlaybookStep } from '@muster/client'
import {
  comparePlaybookVersions,
  deletePlaybook,
  getPlaybook,
  listPlaybookExecutions,
  listPlaybookVersions,
  restorePlaybookVersion,
  updatePlaybook,
} from '@muster/client/operations'
import { IconEdit, IconPlayerPlay } from '@tabler/icons-react'
import { Suspense } from 'react'
import { useIds } from '#address.ts'
import { api, POLL_MS } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ExecutionBadge } from './execution.tsx'
import { PLAYBOOK_FIELDS } from './playbooks.tsx'

const texts = strings.playbooks

const Markdown = onDemand(async () => (await import('#components/markdown.tsx')).default)

/** A playbook: its steps, its executions and its versions. */
export function PlaybookView() {
  const { playbookId } = useIds()
  return (
    <RecordPage queryKey={['playbook', playbookId]} get={getPlaybook} ids={{ playbook_id: playbookId }}>
      {record => <PlaybookPage playbook={record} />}
    </RecordPage>
  )
}

function PlaybookActions({ playbook }: { playbook: Playbook }) {
  const { id, project_id } = playbook
  const isAllowed = usePermissions(project_id)
  return (
    <>
      <RemoveButton
        operation={deletePlaybook}
        ids={{ playbook_id: id }}
        question={texts.deleteText}
        stale={[['playbooks', project_id]]}
        list="playbooks"
      />
      {isAllowed(updatePlaybook) && (
        <FormButton
          label={strings.edit}
          leftSection={<IconEdit size={16} />}
          modalSize="xl"
          form={close => <EditForm playbook={playbook} onDone={close} />}
        />
      )}
    </>
  )
}

function PlaybookPage({ playbook }: { playbook: Playbook }) {
  const { id, name, description, version, project_id } = playbook
  const isAllowed = usePermissions(project_id)
  return (
    <Page
      title={name}
      intro={
        description && (
          <Suspense fallback={visible(description)}>
            <Markdown text={description} />
          </Suspense>
        )
      }
      actions={<PlaybookActions playbook={playbook} />}
    >
      <AddressTabs
        tabs={[
          { value: 'steps', title: texts.steps, content: () => <Steps steps={playbook.steps} /> },
          ...(isAllowed(listPlaybookExecutions) !== false
            ? [
                {
                  value: 'executions',
                  title: texts.executions,
                  content: () => <Executions playbookId={id} />,
                },
              ]
            : []),
          {
            value: 'versions',
            title: strings.versions,
            content: () => (
              <Versions
                queryKey={['playbook', id]}
                current={version}
                ids={{ playbook_id: id }}
                stale={[['playbook', id]]}
                operations={{
                  list: listPlaybookVersions,
                  compare: comparePlaybookVersions,
                  restore: restorePlaybookVersion,
                }}
              />
            ),
          },
          {
            value: 'json',
            title: strings.json,
            content: () => <Value value={playbook} label={strings.json} />,
          },
        ]}
      />
    </Page>
  )
}

function EditForm({ playbook, onDone }: { playbook: Playbook; onDone: () => void }) {
  const { id, project_id } = playbook
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.editText}
      </Text>
      <CommandForm
        label={strings.save}
        schema={fields}
        only={PLAYBOOK_FIELDS}
        initial={playbook}
        run={async (values: PlaybookPatch) => updatePlaybook(api, { playbook_id: id, ...values })}
        stale={[
          ['playbook', id],
          ['playbooks', project_id],
        ]}
        onDone={onDone}
      />
    </Stack>
  )
}

/** Where a step leads to, other than to the next one. */
function routesOf({ type, rules, otherwise, next, on_failure, on_rejected }: PlaybookStep): string[] {
  const targets =
    type === 'branch' ? [...((rules ?? []) as { go_to: string }[]).map(rule => rule.go_to), otherwise] : [next]
  return [
    ...targets.filter(target => typeof target === 'string'),
    ...[on_failure, on_rejected].filter(target => typeof target === 'string' && target !== 'fail'),
  ] as string[]
}

/** The steps as people read them. */
function Steps({ steps }: { steps: PlaybookStep[] }) {
  return (
    <Section title={texts.steps}>
      <Timeline bulletSize={28} lineWidth={2} active={-1} aria-label={texts.steps}>
        {steps.map((step, index) => (
          <Timeline.Item
            key={step.key}
            bullet={
              <Text size="xs" fw={700}>
                {index + 1}
              </Text>
            }
            title={
              <Group gap="xs">
                <Text fw={600} component="span">
                  {visible(step.title)}
                </Text>
                <Badge variant="default">{texts.types[step.type] ?? visible(step.type)}</Badge>
                {step.when !== undefined && step.when !== null && <Badge variant="default">{texts.conditional}</Badge>}
              </Group>
            }
          >
            <Text size="sm" c="dimmed" className="mono">
              {visible(step.key)}
            </Text>
            {step.instructions && (
              <Suspense>
                <Markdown text={step.instructions} />
              </Suspense>
            )}
            {routesOf(step).length > 0 && (
              <Text size="sm" c="dimmed">
                {texts.to(routesOf(step).map(visible).join(', '))}
              </Text>
            )}
          </Timeline.Item>
        ))}
      </Timeline>
    </Section>
  )
}

function Executions({ playbookId }: { playbookId: string }) {
  const projectId = useProjectId()
  const list = useList<PlaybookExecution>(
    ['executions', playbookId],
    async (_, bounds, signal) =>
      listPlaybookExecutions(api, { project_id: projectId, playbook_id: playbookId, ...bounds }, { signal }).page(),
    { pollMs: POLL_MS },
  )
  const columns: Column<PlaybookExecution>[] = [
    {
      title: texts.case,
      isWide: true,
      cell: ({ id, case_id }) => (
        <RecordLink to={`/p/${projectId}/cases/${case_id}/executions/${id}`}>
          <span className="mono">{id}</span>
        </RecordLink>
      ),
    },
    { title: strings.status, cell: execution => <ExecutionBadge execution={execution} /> },
    { title: strings.version, cell: ({ playbook_version }) => playbook_version },
    { title: strings.started, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  return (
    <ListView
      label={texts.executions}
      list={list}
      operation={listPlaybookExecutions}
      columns={columns}
      empty={
        <Notice icon={<IconPlayerPlay />} title={texts.noExecutions}>
          {texts.noExecutionsText}
        </Notice>
      }
    />
  )
}
