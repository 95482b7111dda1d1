import { Badge, Group, Text } from '@mantine/core'
import type { QueueMessage } from '@muster/client'
import { deleteQueueMessage, listQueueMessages, replayQueueMessage } from '@muster/client/operations'
import { IconStack2 } from '@tabler/icons-react'
import { useIds } from '#address.ts'
import { api, POLL_MS } from '#api.ts'
import { ActionButton, RowActions } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { ChoiceField, type Column, ListView, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { elapsedText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.queue

const STATES = Object.entries(texts.states).map(([value, label]) => ({ value, label }))
const COLORS = { no_worker: 'red', project_share: 'orange', slot: 'orange', backoff: 'yellow', entity: 'blue' } as const

const deadLetterActions = (queue: string): Column<QueueMessage> => ({
  title: strings.actions,
  cell: ({ id, state }) =>
    state === 'dead' && (
      <RowActions>
        <ActionButton
          label={texts.replay}
          run={async () => replayQueueMessage(api, { queue, message_id: id })}
          stale={[['system']]}
          message={texts.replayed}
        />
        <ActionButton
          label={texts.drop}
          question={texts.dropText}
          color="red"
          run={async () => deleteQueueMessage(api, { queue, message_id: id })}
          stale={[['system']]}
        />
      </RowActions>
    ),
})

const queueMessageColumns = (
  projectId: string,
  nameOf: (id: string) => string,
  actions: Column<QueueMessage> | undefined,
): Column<QueueMessage>[] => [
  {
    title: strings.record,
    isWide: true,
    cell: ({ id, entity, project_id, error }) => (
      <>
        {entity ? (
          <EntityLink kind={entity.kind} id={entity.id} projectId={project_id ?? projectId} />
        ) : (
          <span className="mono">{id}</span>
        )}
        {project_id && (
          <Text size="sm" c="dimmed">
            {visible(nameOf(project_id))}
          </Text>
        )}
        {error && (
          <Text size="sm" c="dimmed" lineClamp={2}>
            {visible(error)}
          </Text>
        )}
      </>
    ),
  },
  {
    title: strings.state,
    cell: ({ state, waits_for, due_at, instance_id }) => (
      <>
        <Group gap={6}>
          <Badge variant="default">{texts.states[state]}</Badge>
          {waits_for && (
            <Badge variant="dot" color={COLORS[waits_for]} title={texts.reasonTexts[waits_for]}>
              {texts.reasons[waits_for]}
            </Badge>
          )}
        </Group>
        {state === 'delayed' && (
          <Text size="sm" c="dimmed" component="div">
            {texts.due} <When at={due_at} />
          </Text>
        )}
        {instance_id && (
          <Text size="sm" c="dimmed" className="mono">
            {visible(instance_id)}
          </Text>
        )}
      </>
    ),
  },
  { title: texts.attempts, cell: ({ attempts }) => attempts },
  { title: texts.age, cell: ({ created_at }) => elapsedText((Date.now() - Date.parse(created_at)) / 1000) },
  ...(actions ? [actions] : []),
]

/** Messages of a queue, oldest first, with the reason why each waits. */
export function QueueMessages() {
  const projectId = useProjectId()
  const { queue } = useIds()
  const mayManage = usePermissions(projectId)(replayQueueMessage)
  const projects = useProjects()
  const key = ['system', 'messages', queue]
  const list = useList<QueueMessage>(
    key,
    async ({ state, project }, bounds, signal) =>
      listQueueMessages(
        api,
        { queue, state: state as QueueMessage['state'] | undefined, project_id: project, ...bounds },
        { signal },
      ).page(),
    { pollMs: POLL_MS },
  )
  const nameOf = (id: string) => projects.data?.data.find(project => project.id === id)?.name ?? id
  const hasDead = mayManage && list.query.data?.data.some(({ state }) => state === 'dead')
  const columns = queueMessageColumns(projectId, nameOf, hasDead ? deadLetterActions(queue) : undefined)
  return (
    <Page title={queue} intro={texts.messagesIntro}>
      <ListView
        label={texts.messages}
        list={list}
        operation={listQueueMessages}
        columns={columns}
        fields={
          <>
            <ChoiceField name="state" label={strings.state} choices={STATES} />
            <SearchField name="project" label={texts.projectFilter} />
          </>
        }
        empty={
          <Notice icon={<IconStack2 />} title={texts.empty}>
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
