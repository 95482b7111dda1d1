import { Button, Modal, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { Trigger } from '@muster/client'
import { createTrigger, listTriggers } from '@muster/client/operations'
import { IconBolt, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { Suspense } from 'react'
import { api, POLL_MS } from '#api.ts'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { Loading, Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.triggers

const TriggerForm = onDemand(async () => (await import('./trigger-form.tsx')).TriggerForm)

const TYPES = ['manual', 'webhook', 'schedule', 'event'] as const

/** What fires a trigger, in a line. */
export const firedBy = ({ type, cron, timezone, event_pattern }: Trigger): string =>
  ({
    manual: '',
    webhook: '',
    schedule: `${cron} ${timezone ?? 'UTC'}`,
    event: event_pattern ?? '',
  })[type]

const triggerColumns = (projectId: string): Column<Trigger>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: trigger => (
      <>
        <RecordLink to={`/p/${projectId}/triggers/${trigger.id}`}>{visible(trigger.name)}</RecordLink>
        {trigger.description && (
          <Text size="sm" c="dimmed" lineClamp={1}>
            {visible(trigger.description)}
          </Text>
        )}
      </>
    ),
  },
  {
    title: texts.type,
    cell: trigger => (
      <>
        <Text inherit>{texts.types[trigger.type]}</Text>
        <Text size="sm" c="dimmed" className="mono">
          {visible(firedBy(trigger))}
        </Text>
      </>
    ),
  },
  { title: texts.starts, cell: ({ target_type }) => texts.targets[target_type] },
  {
    title: texts.next,
    cell: ({ active, next_fire_at }) =>
      active ? next_fire_at ? <When at={next_fire_at} /> : strings.none : <StatusBadge status="inactive" />,
  },
]

const useTriggers = (projectId: string) =>
  useList<Trigger>(
    ['triggers', projectId],
    async ({ q, type, active }, bounds, signal) => {
      const chosen = TYPES.filter(each => each === type)
      return listTriggers(
        api,
        {
          project_id: projectId,
          name: q,
          type: chosen.length > 0 ? chosen : undefined,
          ...(active ? { active: active === 'true' } : {}),
          ...bounds,
        },
        { signal },
      ).page()
    },
    { pollMs: POLL_MS },
  )

/** Triggers of a project. */
export function Triggers() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  // The dialog is not part of the empty list: the new trigger must not close it before its secret was read.
  const [isCreating, creating] = useDisclosure()
  const list = useTriggers(projectId)
  const columns = triggerColumns(projectId)
  const create = isAllowed(createTrigger) && (
    <Button leftSection={<IconPlus size={16} />} onClick={creating.open}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.triggers} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.triggers}
        list={list}
        operation={listTriggers}
        columns={columns}
        fields={
          <>
            <SearchField />
            <ChoiceField
              name="type"
              label={texts.type}
              choices={TYPES.map(value => ({ value, label: texts.types[value] }))}
            />
            <ChoiceField
              name="active"
              label={strings.state}
              choices={[
                { value: 'true', label: strings.statuses.active },
                { value: 'false', label: strings.statuses.inactive },
              ]}
            />
          </>
        }
        empty={
          <Notice icon={<IconBolt />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      <Modal opened={isCreating} onClose={creating.close} title={texts.create} size="lg">
        <Suspense fallback={<Loading />}>
          <TriggerForm
            projectId={projectId}
            onDone={id => {
              creating.close()
              if (id) void navigate({ to: `/p/${projectId}/triggers/${id}` })
            }}
          />
        </Suspense>
      </Modal>
    </Page>
  )
}
