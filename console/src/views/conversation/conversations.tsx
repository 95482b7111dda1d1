import createFields from 'fields:createConversation'
import { Badge, Group } from '@mantine/core'
import type { Conversation, ConversationInput } from '@muster/client'
import { createConversation, listConversations } from '@muster/client/operations'
import { IconMessage2, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { useActors } from '#choices.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { Tags, tagFilter } from '#components/tags.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const STATUSES = ['open', 'closed'] as const

const conversationColumns = (projectId: string, nameOf: (id: string) => string): Column<Conversation>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: ({ id, name, session_id, tags }) => (
      <>
        <Group gap="sm">
          <RecordLink
            to={session_id ? `/p/${projectId}/sessions/${session_id}` : `/p/${projectId}/conversations/${id}`}
          >
            {visible(name ?? strings.conversations.unnamed)}
          </RecordLink>
          {session_id && <Badge variant="default">{strings.conversations.session}</Badge>}
        </Group>
        {Object.keys(tags).length > 0 && <Tags tags={tags} />}
      </>
    ),
  },
  { title: strings.conversations.messages, cell: ({ message_count }) => message_count.toLocaleString() },
  {
    title: strings.state,
    cell: ({ status }) => (
      <Badge variant="default">{strings.conversations.status[status as (typeof STATUSES)[number]]}</Badge>
    ),
  },
  { title: strings.memory.actor, cell: ({ actor_id }) => (actor_id ? nameOf(actor_id) : strings.none) },
  { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
]

/** Conversations of a project. */
export function Conversations() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { choices: actors, nameOf } = useActors(projectId)
  const list = useList<Conversation>(
    ['conversations', projectId],
    async ({ q, status, actor, tag }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      const args = {
        project_id: projectId,
        name: q,
        status: chosen,
        ...tagFilter(tag),
        ...(actor ? { actor_id: actor } : {}),
        ...bounds,
      }
      return listConversations(api, args, { signal }).page()
    },
  )
  const columns = conversationColumns(projectId, nameOf)
  const create = isAllowed(createConversation) && (
    <FormButton
      label={strings.conversations.create}
      leftSection={<IconPlus size={16} />}
      form={close => <ConversationForm onCancel={close} />}
    />
  )
  return (
    <Page title={strings.nav.conversations} intro={strings.conversations.intro} actions={create}>
      <ListView
        label={strings.nav.conversations}
        list={list}
        operation={listConversations}
        columns={columns}
        fields={
          <>
            <SearchField />
            <SearchField name="tag" label={strings.tags.filter} />
            <ChoiceField
              name="status"
              label={strings.state}
              choices={STATUSES.map(value => ({ value, label: strings.conversations.status[value] }))}
            />
            {actors && actors.length > 0 && <ChoiceField name="actor" label={strings.memory.actor} choices={actors} />}
          </>
        }
        view="conversations"
        empty={
          <Notice icon={<IconMessage2 />} title={strings.conversations.empty} action={create} color="indigo">
            {strings.conversations.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function ConversationForm({ onCancel }: { onCancel: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const create = useAction({
    run: async (values: Partial<ConversationInput>) => createConversation(api, { ...values, project_id: projectId }),
    stale: [['conversations', projectId]],
    onDone: ({ id }) => void navigate({ to: `/p/${projectId}/conversations/${id}` }),
  })
  return (
    <SchemaForm
      schema={createFields}
      only={['name', 'actor_id']}
      submitLabel={strings.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={create.mutate}
      onCancel={onCancel}
    />
  )
}
