import patchFields from 'fields:updateConversation'
import metadataFields from 'fields:updateConversationMessage'
import { Badge, Button, Card, Group, SegmentedControl, Select, Stack, Text, Textarea } from '@mantine/core'
import {
  type Conversation,
  type ConversationMessage,
  type ConversationMessagePatch,
  type ConversationPatch,
  type ConversationSummary,
  NotFound,
} from '@muster/client'
import {
  createConversationMessage,
  deleteConversation,
  deleteConversationMessage,
  generateConversationMessage,
  getConversation,
  getConversationSummary,
  listConversationMessages,
  listFeedback,
  putGenerationFeedback,
  replaceConversationTags,
  updateConversation,
  updateConversationMessage,
} from '@muster/client/operations'
import { IconMessage2 } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { useAgents } from '#choices.ts'
import { FormButton, Question, useAction } from '#components/actions.tsx'
import { saveConversation } from '#components/conversation-file.ts'
import { DialogMenu } from '#components/dialog-menu.tsx'
import { useDraft } from '#components/draft.tsx'
import { FeedbackForm, FeedbackList } from '#components/feedback.tsx'
import { MessageCard } from '#components/message.tsx'
import { Page } from '#components/page.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { SchemaForm, SubmitRow } from '#components/schema-form.tsx'
import { FailureAlert, Loaded, Notice } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { useMe, usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.conversations

/** Messages that are drawn at first, and that each click adds. */
const SHOWN = 100

const conversationKey = (id: string) => ['conversation', id]

/** A conversation that is no session: its messages, and what can be done with them. */
export function ConversationView() {
  const { conversationId } = useIds()
  return (
    <RecordPage
      queryKey={conversationKey(conversationId)}
      get={getConversation}
      ids={{ conversation_id: conversationId }}
    >
      {record => <ConversationPage conversation={record} />}
    </RecordPage>
  )
}

function ConversationPage({ conversation }: { conversation: Conversation }) {
  const { id, project_id, status, session_id } = conversation
  const isAllowed = usePermissions(project_id)
  const navigate = useNavigate()
  const stale = [conversationKey(id), ['conversations', project_id]]
  const mayUpdate = isAllowed(updateConversation) === true
  const entries = [
    mayUpdate && {
      title: texts.rename,
      content: (close: () => void) => <SettingsForm conversation={conversation} onDone={close} />,
    },
    { title: texts.summary, content: () => <Summary conversation={conversation} /> },
    {
      title: strings.sessionMenu.export,
      content: (close: () => void) => (
        <Question
          text={strings.sessionMenu.exportText}
          label={strings.sessionMenu.export}
          run={() => saveConversation(id)}
          close={close}
        />
      ),
    },
    isAllowed(deleteConversation) && {
      title: strings.remove,
      content: (close: () => void) => (
        <Question
          text={texts.deleteText}
          label={strings.remove}
          run={async () => deleteConversation(api, { conversation_id: id })}
          stale={stale.slice(1)}
          onDone={() => void navigate({ to: `/p/${project_id}/conversations` })}
          close={close}
        />
      ),
    },
  ]
  return (
    <Page
      title={conversation.name ?? texts.unnamed}
      intro={
        <Group gap="sm">
          <Badge variant="default">{status && texts.status[status]}</Badge>
          <Tags tags={conversation.tags} />
          {mayUpdate && (
            <TagsButton
              tags={conversation.tags}
              save={async tags => replaceConversationTags(api, { ...tags, conversation_id: id })}
              stale={stale}
            />
          )}
        </Group>
      }
      actions={
        <>
          {session_id && (
            <Button component={Link} to={`/p/${project_id}/sessions/${session_id}`}>
              {texts.openSession}
            </Button>
          )}
          {status === 'open' && isAllowed(generateConversationMessage) && (
            <FormButton
              label={texts.generate}
              variant="default"
              form={close => <GenerateForm conversation={conversation} onDone={close} />}
            />
          )}
          <DialogMenu label={strings.more} entries={entries.filter(entry => entry !== false && entry !== undefined)} />
        </>
      }
    >
      <Messages conversation={conversation} />
      {mayUpdate && status === 'open' && <Composer conversation={conversation} />}
    </Page>
  )
}

function SettingsForm({ conversation, onDone }: { conversation: Conversation; onDone: () => void }) {
  const save = useAction({
    run: async (values: ConversationPatch) => updateConversation(api, { ...values, conversation_id: conversation.id }),
    stale: [conversationKey(conversation.id), ['conversations', conversation.project_id]],
    onDone,
  })
  return (
    <SchemaForm
      schema={patchFields}
      only={['name', 'status']}
      initial={conversation}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

function GenerateForm({ conversation, onDone }: { conversation: Conversation; onDone: () => void }) {
  const { id, project_id } = conversation
  const [chosen, setChosen] = useState<string | null>(null)
  const { choices, query } = useAgents(project_id)
  const agentId = chosen ?? choices?.[0]?.value
  const generate = useAction({
    run: async (agent: string) => {
      await generateConversationMessage(api, { conversation_id: id, agent_id: agent, wait: true })
    },
    stale: [conversationKey(id), ['conversations', project_id]],
    onDone,
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (agentId) generate.mutate(agentId)
      }}
    >
      <Stack gap="md">
        <Select
          label={strings.sessions.agent}
          data={choices}
          value={agentId ?? null}
          onChange={setChosen}
          allowDeselect={false}
          searchable
          data-autofocus
        />
        <SubmitRow
          label={strings.sessions.generate}
          isPending={generate.isPending}
          error={generate.error ?? query.error}
          onCancel={onDone}
        />
      </Stack>
    </form>
  )
}

/** The summary that replaces early messages in turns, if there is one. */
function Summary({ conversation: { id } }: { conversation: Conversation }) {
  const summary = useQuery<ConversationSummary | null>({
    queryKey: [...conversationKey(id), 'summary'],
    queryFn: async ({ signal }) => {
      try {
        return await getConversationSummary(api, { conversation_id: id }, { signal })
      } catch (error) {
        if (error instanceof NotFound) return null
        throw error
      }
    },
  })
  return (
    <Loaded query={summary} operation={getConversation} rows={1}>
      {found =>
        found ? (
          <Stack gap="sm">
            <Text size="sm" c="dimmed">
              {texts.summaryOf(found.up_to_position)}
            </Text>
            <Text className="wrap">{visible(found.text)}</Text>
          </Stack>
        ) : (
          <Text c="dimmed">{texts.noSummary}</Text>
        )
      }
    </Loaded>
  )
}

function Messages({ conversation }: { conversation: Conversation }) {
  const { id } = conversation
  const [count, setCount] = useState(SHOWN)
  const messages = useQuery({
    queryKey: [...conversationKey(id), 'messages', count],
    queryFn: async ({ signal }) => {
      const { total } = await listConversationMessages(api, { conversation_id: id, limit: 1 }, { signal }).page()
      const offset = Math.max(0, total - count)
      const rows = await listConversationMessages(api, { conversation_id: id, offset }, { signal }).all({ max: count })
      return { rows, total }
    },
    placeholderData: previous => previous,
    refetchInterval: every(POLL_MS),
  })
  return (
    <Loaded query={messages} operation={getConversation}>
      {({ rows, total }) =>
        rows.length === 0 ? (
          <Notice icon={<IconMessage2 />} title={texts.noMessages}>
            {texts.noMessagesText}
          </Notice>
        ) : (
          <Stack gap="md" role="log" aria-label={strings.sessions.transcript} aria-live="polite">
            {rows.length < total && (
              <Button
                variant="default"
                size="xs"
                loading={messages.isFetching}
                onClick={() => setCount(count + SHOWN)}
                style={{ alignSelf: 'center' }}
              >
                {strings.sessions.earlier}
              </Button>
            )}
            {rows.map(message => (
              <MessageCard
                key={message.document_id}
                message={message}
                menu={<MessageMenu conversation={conversation} message={message} />}
              >
                {message.metadata !== null && <Value value={message.metadata} label={strings.files.metadata} />}
              </MessageCard>
            ))}
          </Stack>
        )
      }
    </Loaded>
  )
}

function MessageMenu({
  conversation: { id, project_id },
  message,
}: {
  conversation: Conversation
  message: ConversationMessage
}) {
  const isAllowed = usePermissions(project_id)
  const { document_id, generation_id, position } = message
  const mayUpdate = isAllowed(updateConversation) === true
  const entries = [
    generation_id !== null &&
      isAllowed(putGenerationFeedback) && {
        title: strings.feedback.give,
        content: (close: () => void) => (
          <GenerationFeedback projectId={project_id} generationId={generation_id} onDone={close} />
        ),
      },
    mayUpdate && {
      title: texts.metadata,
      content: (close: () => void) => <MetadataForm message={message} onDone={close} />,
    },
    mayUpdate && {
      title: strings.remove,
      content: (close: () => void) => (
        <Question
          text={strings.sessionMenu.deleteMessageText}
          label={strings.remove}
          run={async () => deleteConversationMessage(api, { conversation_id: id, document_id })}
          stale={[conversationKey(id)]}
          close={close}
        />
      ),
    },
  ]
  return (
    <DialogMenu
      label={strings.sessionMenu.messageLabel(position)}
      entries={entries.filter(entry => entry !== false && entry !== undefined)}
    />
  )
}

/** The feedback on a turn, and the own one to change. */
function GenerationFeedback({
  projectId,
  generationId,
  onDone,
}: {
  projectId: string
  generationId: string
  onDone: () => void
}) {
  const isAllowed = usePermissions(projectId)
  const { data: me } = useMe()
  const mayList = isAllowed(listFeedback) === true
  const feedback = useQuery({
    queryKey: ['generation', generationId, 'feedback'],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, generation_id: generationId, limit: 100 }
      return mayList ? (await listFeedback(api, args, { signal }).page()).data : []
    },
  })
  return (
    <Loaded query={feedback} operation={listFeedback}>
      {rows => (
        <Stack gap="md">
          <FeedbackList rows={rows} />
          <FeedbackForm
            own={rows.find(({ author }) => author.id === me?.id)}
            put={async input => putGenerationFeedback(api, { ...input, generation_id: generationId })}
            stale={[['generation', generationId, 'feedback']]}
            onDone={onDone}
          />
        </Stack>
      )}
    </Loaded>
  )
}

function MetadataForm({ message, onDone }: { message: ConversationMessage; onDone: () => void }) {
  const { conversation_id, document_id } = message
  const save = useAction({
    run: async (values: ConversationMessagePatch) =>
      updateConversationMessage(api, { ...values, conversation_id, document_id }),
    stale: [conversationKey(conversation_id)],
    onDone,
  })
  return (
    <SchemaForm
      schema={metadataFields}
      initial={message}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

function Composer({ conversation: { id, project_id } }: { conversation: Conversation }) {
  const { value: text, setValue: setText } = useDraft('message', '')
  const [role, setRole] = useState<'user' | 'assistant'>('user')
  const add = useAction({
    run: async (message: string) => createConversationMessage(api, { conversation_id: id, message, role }),
    stale: [conversationKey(id), ['conversations', project_id]],
    onDone: () => setText(''),
  })
  const submit = () => text.trim() && !add.isPending && add.mutate(text.trim())
  return (
    <Card withBorder padding="md" radius="lg">
      <form
        onSubmit={event => {
          event.preventDefault()
          submit()
        }}
      >
        <Stack gap="sm">
          <Textarea
            label={texts.add}
            autosize
            minRows={2}
            maxRows={8}
            value={text}
            onChange={event => setText(event.currentTarget.value)}
          />
          {add.error && <FailureAlert error={add.error} />}
          <Group justify="space-between" gap="sm">
            <SegmentedControl
              aria-label={texts.role}
              value={role}
              onChange={next => setRole(next as 'user' | 'assistant')}
              data={[
                { value: 'user', label: texts.roles.user },
                { value: 'assistant', label: texts.roles.assistant },
              ]}
            />
            <Button type="submit" loading={add.isPending} disabled={!text.trim()}>
              {texts.add}
            </Button>
          </Group>
        </Stack>
      </form>
    </Card>
  )
}
