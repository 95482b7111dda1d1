import forkFields from 'fields:forkSession'
import patchFields from 'fields:updateSession'
import { Anchor, Group, Select, Stack, Text, Textarea } from '@mantine/core'
import type { Feedback, Session, SessionForkInput, SessionMessage, SessionPatch } from '@muster/client'
import {
  createDatasetItemsFromSession,
  createSession,
  deleteConversationMessage,
  deleteSession,
  forkSession,
  generateSessionReply,
  getConversation,
  listDatasets,
  listFeedback,
  listSessionForks,
  putMessageFeedback,
  replaceSessionTags,
  sendSessionMessage,
  updateSession,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { Question, useAction } from '#components/actions.tsx'
import { saveConversation } from '#components/conversation-file.ts'
import { useDatasetSelect } from '#components/dataset-select.tsx'
import { type DialogEntry, DialogMenu } from '#components/dialog-menu.tsx'
import { useDraft } from '#components/draft.tsx'
import { FeedbackForm, FeedbackList } from '#components/feedback.tsx'
import { RecordLink } from '#components/list.tsx'
import { Facts, IdLine, LabelledValues } from '#components/record.tsx'
import { SchemaForm, SubmitRow } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { CopyText, visible, When } from '#components/text.tsx'
import { useMe, usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.sessionMenu

/** An entry that opens or closes a session. */
const change = ({ id }: Session, next: 'open' | 'closed', label: string, text: string): DialogEntry => ({
  title: label,
  content: close => (
    <Question
      text={text}
      label={label}
      run={async () => updateSession(api, { session_id: id, status: next })}
      stale={[['session', id], ['sessions']]}
      close={close}
    />
  ),
})

/** What can be done with a session as a whole. */
export function SessionMenu({ session }: { session: Session }) {
  const { id, project_id, status } = session
  const isAllowed = usePermissions(project_id)
  const navigate = useNavigate()
  const mayUpdate = isAllowed(updateSession) === true
  const entries: (DialogEntry | false | undefined)[] = [
    { title: texts.details, content: () => <Details session={session} /> },
    mayUpdate && {
      title: texts.settings,
      content: close => <SettingsForm session={session} onDone={close} />,
    },
    mayUpdate && status === 'open' && change(session, 'closed', texts.close, texts.closeText),
    mayUpdate && status === 'closed' && change(session, 'open', texts.reopen, texts.reopenText),
    isAllowed(createSession) && {
      title: texts.fork,
      content: close => <ForkForm session={session} onCancel={close} />,
    },
    isAllowed(getConversation) && {
      title: texts.export,
      content: close => (
        <Question
          text={texts.exportText}
          label={texts.export}
          run={() => saveConversation(session.conversation_id)}
          close={close}
        />
      ),
    },
    isAllowed(createDatasetItemsFromSession) &&
      isAllowed(listDatasets) && {
        title: texts.dataset,
        content: close => <DatasetForm session={session} onDone={close} />,
      },
    isAllowed(deleteSession) && {
      title: strings.remove,
      content: close => (
        <Question
          text={texts.deleteText}
          label={strings.remove}
          run={async () => deleteSession(api, { session_id: id })}
          stale={[['sessions']]}
          onDone={() => void navigate({ to: `/p/${project_id}/sessions` })}
          close={close}
        />
      ),
    },
  ]
  return <DialogMenu label={texts.label} entries={entries.filter(entry => !!entry)} />
}

function Details({ session }: { session: Session }) {
  const { id, project_id } = session
  const isAllowed = usePermissions(project_id)
  const forks = useQuery({
    queryKey: ['session', id, 'forks'],
    queryFn: async ({ signal }) =>
      (await listSessionForks(api, { session_id: id, limit: 100 }, { signal }).page()).data,
  })
  const to = (sessionId: string) => `/p/${project_id}/sessions/${sessionId}`
  const { forked_from_session_id: parent, state } = session
  return (
    <Stack gap="md">
      <Facts
        facts={[
          [strings.created, <When key="created" at={session.created_at} />],
          [strings.sessions.activity, <When key="activity" at={session.last_activity_at} />],
          [texts.queued, session.queued_turns || undefined],
          [
            strings.sessions.agent,
            <Anchor key="agent" component={Link} to={`/p/${project_id}/agents/${session.agent_id}`} underline="always">
              {strings.open}
            </Anchor>,
          ],
          [
            texts.parent,
            parent && (
              <Anchor key="parent" component={Link} to={to(parent)} underline="always">
                {session.forked_from_position === null ? strings.open : texts.atPosition(session.forked_from_position)}
              </Anchor>
            ),
          ],
        ]}
      />
      <IdLine id={id} />
      <Group gap="sm">
        <Tags tags={session.tags} />
        {isAllowed(updateSession) && (
          <TagsButton
            tags={session.tags}
            save={async tags => replaceSessionTags(api, { ...tags, session_id: id })}
            stale={[['session', id], ['sessions']]}
          />
        )}
      </Group>
      <LabelledValues values={[[strings.state, state]]} />
      <Loaded query={forks} operation={listSessionForks} rows={1}>
        {rows =>
          rows.length > 0 && (
            <Stack gap={4}>
              <Text fw={600}>{texts.forks}</Text>
              {rows.map(fork => (
                <RecordLink key={fork.id} to={to(fork.id)}>
                  {visible(fork.name ?? strings.sessions.unnamed)}
                </RecordLink>
              ))}
            </Stack>
          )
        }
      </Loaded>
    </Stack>
  )
}

function SettingsForm({ session, onDone }: { session: Session; onDone: () => void }) {
  const save = useAction({
    run: async (values: SessionPatch) => updateSession(api, { ...values, session_id: session.id }),
    stale: [['session', session.id], ['sessions']],
    onDone,
  })
  return (
    <SchemaForm
      schema={patchFields}
      only={[
        'name',
        'auto_generate',
        'message_delay_seconds',
        'inactivity_ttl_seconds',
        'takeover_timeout_seconds',
        'state',
      ]}
      initial={session}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

function ForkForm({ session, position, onCancel }: { session: Session; position?: number; onCancel: () => void }) {
  const { project_id } = session
  const navigate = useNavigate()
  const fork = useAction({
    run: async (values: SessionForkInput) =>
      forkSession(api, {
        ...values,
        session_id: session.id,
        ...(position === undefined ? {} : { fork_at_position: position }),
      }),
    stale: [['sessions'], ['session', session.id]],
    message: texts.forked,
    onDone: ({ id }) => {
      onCancel()
      void navigate({ to: `/p/${project_id}/sessions/${id}` })
    },
  })
  return (
    <SchemaForm
      schema={forkFields}
      only={['name', 'agent_id']}
      start={{ name: texts.forkOf(session.name ?? strings.sessions.unnamed) }}
      submitLabel={texts.fork}
      isPending={fork.isPending}
      error={fork.error}
      onSubmit={fork.mutate}
      onCancel={onCancel}
    />
  )
}

/** Messages never change: a changed one is sent in a fork that ends before it, so that the answers can be compared. */
function EditForm({
  session,
  message,
  before,
  onCancel,
}: {
  session: Session
  message: SessionMessage
  before?: number
  onCancel: () => void
}) {
  const navigate = useNavigate()
  const { value: text, setValue: setText, forget } = useDraft('edit', message.content ?? '')
  const close = () => {
    forget()
    onCancel()
  }
  const edit = useAction({
    run: async () => {
      const name = texts.forkOf(session.name ?? strings.sessions.unnamed)
      const fork =
        before === undefined
          ? await createSession(api, {
              project_id: session.project_id,
              agent_id: session.agent_id,
              actor_id: session.actor_id,
              name,
            })
          : await forkSession(api, { session_id: session.id, fork_at_position: before, name })
      await sendSessionMessage(api, { session_id: fork.id, message: text.trim() })
      // A fork replies on request only.
      await generateSessionReply(api, { session_id: fork.id })
      return fork.id
    },
    stale: [['sessions'], ['session', session.id]],
    message: texts.forked,
    onDone: id => {
      close()
      void navigate({ to: `/p/${session.project_id}/sessions/${id}` })
    },
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (text.trim()) edit.mutate()
      }}
    >
      <Stack gap="md">
        <Textarea
          label={strings.text}
          description={texts.editHelp}
          value={text}
          onChange={event => setText(event.currentTarget.value)}
          autosize
          minRows={3}
          maxRows={16}
          required
          data-autofocus
        />
        <SubmitRow label={texts.sendFork} isPending={edit.isPending} error={edit.error} onCancel={close} />
      </Stack>
    </form>
  )
}

function DatasetForm({ session, onDone }: { session: Session; onDone: () => void }) {
  const { project_id } = session
  const dataset = useDatasetSelect(project_id)
  const [replies, setReplies] = useState<'last' | 'all'>('last')
  const save = useAction({
    run: async () =>
      createDatasetItemsFromSession(api, { dataset_id: await dataset.datasetId(), session_id: session.id, replies }),
    stale: [['datasets', project_id]],
    message: strings.datasetItem.saved,
    onDone,
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (dataset.isReady) save.mutate()
      }}
    >
      <Stack gap="md">
        {dataset.field}
        <Select
          label={texts.replies}
          data={[
            { value: 'last', label: texts.lastReply },
            { value: 'all', label: texts.allReplies },
          ]}
          value={replies}
          onChange={next => setReplies(next as 'last' | 'all')}
          allowDeselect={false}
        />
        <SubmitRow isPending={save.isPending} error={save.error ?? dataset.error} onCancel={onDone} />
      </Stack>
    </form>
  )
}

const feedbackKey = (sessionId: string) => ['session', sessionId, 'feedback']

/** The feedback on the replies of a session: one list for all messages. */
function useFeedback({ id, project_id }: Session) {
  const isAllowed = usePermissions(project_id)
  return useQuery<Feedback[]>({
    queryKey: feedbackKey(id),
    queryFn: async ({ signal }) =>
      (await listFeedback(api, { project_id, session_id: id, limit: 100 }, { signal }).page()).data,
    enabled: isAllowed(listFeedback) === true,
    staleTime: 30_000,
  })
}

/** What people said of a message. */
export function MessageFeedback({ session, message }: { session: Session; message: SessionMessage }) {
  const { data = [] } = useFeedback(session)
  const rows = data.filter(({ document_id }) => document_id === message.document_id)
  return rows.length > 0 ? <FeedbackList rows={rows} /> : null
}

/** What can be done with a message of a session. */
export function MessageMenu({
  session,
  message,
  before,
  isFirst,
}: {
  session: Session
  message: SessionMessage
  /** Position of the message before this one. */
  before?: number
  isFirst: boolean
}) {
  const isAllowed = usePermissions(session.project_id)
  const { data: me } = useMe()
  const { data: feedback = [] } = useFeedback(session)
  const { document_id, position, role, origin, generation_id } = message
  const own = feedback.find(row => row.document_id === document_id && row.author.id === me?.id)
  const mayCreate = isAllowed(createSession) === true
  const entries: (DialogEntry | false | undefined)[] = [
    origin === 'agent' &&
      isAllowed(putMessageFeedback) && {
        title: strings.feedback.give,
        content: close => (
          <FeedbackForm
            own={own}
            put={async input => putMessageFeedback(api, { ...input, session_id: session.id, document_id })}
            stale={[feedbackKey(session.id)]}
            onDone={close}
          />
        ),
      },
    mayCreate && {
      title: texts.forkHere,
      content: close => <ForkForm session={session} position={position} onCancel={close} />,
    },
    mayCreate &&
      role === 'user' &&
      (isFirst || before !== undefined) &&
      isAllowed(sendSessionMessage) && {
        title: texts.edit,
        content: close => <EditForm session={session} message={message} before={before} onCancel={close} />,
      },
    {
      title: texts.messageDetails,
      content: () => (
        <Facts
          facts={[
            [texts.position, String(position)],
            [strings.agents.model, message.model && visible(message.model)],
            [
              texts.turn,
              generation_id && (
                <Stack key="turn" gap={0} align="flex-start">
                  <span className="mono">{generation_id}</span>
                  <CopyText text={generation_id} />
                </Stack>
              ),
            ],
            [
              texts.message,
              <span key="id" className="mono">
                {document_id}
              </span>,
            ],
          ]}
        />
      ),
    },
    isAllowed(deleteConversationMessage) && {
      title: strings.remove,
      content: close => (
        <Question
          text={texts.deleteMessageText}
          label={strings.remove}
          run={async () => deleteConversationMessage(api, { conversation_id: session.conversation_id, document_id })}
          stale={[['session', session.id, 'messages']]}
          close={close}
        />
      ),
    },
  ]
  return <DialogMenu label={texts.messageLabel(position)} entries={entries.filter(entry => !!entry)} />
}
