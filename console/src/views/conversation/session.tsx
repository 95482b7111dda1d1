import { Alert, Badge, Box, Button, Card, Group, Modal, Stack, Text } from '@mantine/core'
import { isMusterError, type Session, type SessionMessage, type SessionNote } from '@muster/client'
import {
  cancelSession,
  generateSessionReply,
  getActor,
  getSession,
  handbackSession,
  listSessionMessages,
  sendSessionMessage,
  streamSession,
  takeOverSession,
} from '@muster/client/operations'
import { IconHandStop, IconMessage } from '@tabler/icons-react'
import { type QueryClient, useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useAgents } from '#choices.ts'
import { Question } from '#components/actions.tsx'
import { AgentLink, EndUserLink } from '#components/end-user-link.tsx'
import { MessageCard } from '#components/message.tsx'
import { Page } from '#components/page.tsx'
import { usePersonName } from '#components/person.ts'
import { FailureAlert, Loaded, Notice } from '#components/states.tsx'
import { StreamingText } from '#components/streaming-text.tsx'
import { visible } from '#components/text.tsx'
import { useStream } from '#live.ts'
import { useMe, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { MessageFeedback, MessageMenu, SessionMenu } from './session-actions.tsx'
import { OperatorComposer, UserComposer } from './session-composer.tsx'
import { NoteCard, NoteComposer, useNotes } from './session-notes.tsx'
import { SessionBadges } from './sessions.tsx'

const texts = strings.sessions

/** Messages that are drawn at first. */
const LATEST = 100
type Transcript = { messages: SessionMessage[]; total: number }
/** The turn that runs: its text so far and its tools. */
type Running = { text: string; tools: { id: string; label: string; ok?: boolean }[]; error?: string }

const recordKey = (id: string) => ['session', id]
const transcriptKey = (id: string) => ['session', id, 'messages']
const runningKey = (id: string) => ['session', id, 'running']

type StreamEvent = ReturnType<typeof streamSession> extends AsyncIterable<infer E> ? E : never

/** Applies an event of the stream to the cache. */
function apply(cache: QueryClient, id: string, event: StreamEvent): void {
  const write = (running: Running | null) => cache.setQueryData<Running | null>(runningKey(id), () => running)
  const setRunning = (next: (running: Running) => Running) =>
    write(next(cache.getQueryData<Running | null>(runningKey(id)) ?? { text: '', tools: [] }))
  const patch = (fields: Partial<Session>) =>
    cache.setQueryData<Session>(recordKey(id), session => session && { ...session, ...fields })
  switch (event.event) {
    case 'ready':
      patch(event.data.session as Partial<Session>)
      if (!event.data.generation_id) write(null)
      // Messages between the read of the messages and the start of the stream.
      void cache.invalidateQueries({ queryKey: transcriptKey(id) })
      break
    case 'gap':
    case 'message_updated':
    case 'message_deleted':
      void cache.invalidateQueries({ queryKey: transcriptKey(id) })
      break
    case 'message': {
      const message = event.data as SessionMessage
      cache.setQueryData<Transcript>(transcriptKey(id), all => {
        if (!all || all.messages.some(({ document_id }) => document_id === message.document_id)) return all
        return { messages: [...all.messages, message], total: all.total + 1 }
      })
      if (message.role === 'assistant') setRunning(({ tools }) => ({ text: '', tools }))
      break
    }
    case 'turn_started':
      write({ text: '', tools: [] })
      patch({ generating_at: new Date().toISOString() })
      break
    case 'turn_text':
      setRunning(running => ({ ...running, text: event.data.text }))
      break
    case 'delta':
      setRunning(running => ({ ...running, text: running.text + (event.data.choices[0]?.delta.content ?? '') }))
      break
    case 'tool': {
      const { tool_call_id, label, tool_name, ok } = event.data
      setRunning(running => ({
        ...running,
        tools: [
          ...running.tools.filter(tool => tool.id !== tool_call_id),
          { id: tool_call_id, label: tool_name ?? label, ok },
        ],
      }))
      break
    }
    case 'turn_completed':
    case 'requires_action':
      write(null)
      patch({ generating_at: null })
      break
    case 'turn_failed':
      write({ text: '', tools: [], error: event.data.error?.message ?? texts.turnFailed })
      patch({ generating_at: null })
      break
    case 'control':
      patch({ control: event.data.control, attention: event.data.attention, assigned_to: event.data.assigned_to })
      // The name of who is in charge is in the record only.
      void cache.invalidateQueries({ queryKey: recordKey(id), exact: true })
      break
    case 'session':
      patch(event.data as Partial<Session>)
      break
  }
}

/** A session: transcript, live reply, and a person who takes over. */
export function SessionView() {
  const { sessionId } = useIds()
  const session = useQuery<Session>({
    queryKey: recordKey(sessionId),
    queryFn: async ({ signal }) => (await getSession(api, { session_id: sessionId }, { signal })) as Session,
  })
  return (
    <Loaded query={session} operation={getSession}>
      {record => <SessionPage session={record} />}
    </Loaded>
  )
}

/** The end user of a session, for those who may get it. */
const useEndUser = ({ actor_id, project_id }: Session) => {
  const mayGet = usePermissions(project_id)(getActor) === true
  return useQuery({
    queryKey: ['actor', actor_id, 'record'],
    queryFn: async ({ signal }) => getActor(api, { actor_id: actor_id as string }, { signal }),
    enabled: actor_id !== null && mayGet,
    staleTime: 60_000,
  }).data
}

/** Who the session is between: the end user and the agent. */
function Participants({ session }: { session: Session }) {
  const { actor_id, agent_id, project_id } = session
  const actor = useEndUser(session)
  const agent = useAgents(project_id).rows?.find(({ id }) => id === agent_id)
  return (
    <Group gap="lg">
      {actor_id !== null && (
        <Group gap={6}>
          {strings.sessionFilters.endUser}:
          <EndUserLink
            entry={{ actor_id, actor_name: actor?.name ?? null, actor_external_id: actor?.external_id ?? null }}
          />
        </Group>
      )}
      <Group gap={6}>
        {texts.agent}: <AgentLink entry={{ agent_id, agent_name: agent?.name ?? null }} />
      </Group>
    </Group>
  )
}

/** Whom a takeover would replace, and the question to the user about it. */
type Choice = { from: string; text: string }

/** Takes the session over. While another person answers, the user confirms it first, also if that person was faster. */
function useTakeover({ id, project_id, control, assigned_to, assignee_name }: Session) {
  const cache = useQueryClient()
  const personName = usePersonName(project_id)
  const [choice, setChoice] = useState<Choice | null>(null)
  const run = async (expected: string | null) => {
    const taken = await takeOverSession(api, { session_id: id, expected_assigned_to: expected })
    cache.setQueryData<Session>(recordKey(id), before => before && { ...before, ...taken })
  }
  const action = useMutation({
    mutationFn: async () => run(null),
    onError: error => {
      if (!isMusterError(error, 'SESSION_ASSIGNED')) return
      const { assigned_to: from, assignee_name: name } = error.meta as { assigned_to: string; assignee_name: string }
      setChoice({ from, text: texts.faster(personName(from, name)) })
      void cache.invalidateQueries({ queryKey: recordKey(id), exact: true })
    },
  })
  const rival = control === 'operator' && assigned_to !== null ? personName(assigned_to, assignee_name) : null
  const takeOver = () =>
    rival === null ? action.mutate() : setChoice({ from: assigned_to as string, text: texts.takeOverFromText(rival) })
  const close = () => setChoice(null)
  return {
    rival,
    takeOver,
    isPending: action.isPending,
    error: isMusterError(action.error, 'SESSION_ASSIGNED') ? null : action.error,
    dialog: (
      <Modal opened={choice !== null} onClose={close} title={texts.takeOver}>
        {choice && (
          <Question text={choice.text} label={texts.takeOver} run={async () => run(choice.from)} close={close} />
        )}
      </Modal>
    ),
  }
}

function SessionPage({ session }: { session: Session }) {
  const { id, control, assigned_to, attention, status } = session
  const cache = useQueryClient()
  const isAllowed = usePermissions(useProjectId())
  const { data: me } = useMe()
  const isLive = useStream(id, {
    open: signal => streamSession(api, { session_id: id }, { signal }),
    apply: event => apply(cache, id, event),
    onLost: () => void cache.invalidateQueries({ queryKey: recordKey(id) }),
  })
  const takeover = useTakeover(session)
  const customerName = useEndUser(session)?.name
  const handBack = useMutation({
    mutationFn: async () => handbackSession(api, { session_id: id }),
    onSuccess: changed => cache.setQueryData<Session>(recordKey(id), before => before && { ...before, ...changed }),
  })
  const cancel = useMutation({ mutationFn: async () => cancelSession(api, { session_id: id }) })
  const generate = useMutation({ mutationFn: async () => generateSessionReply(api, { session_id: id }) })
  const isMine = control === 'operator' && assigned_to === me?.id
  const mayOperate = isAllowed(takeOverSession) === true && status === 'open'
  const actions = (
    <>
      {session.generating_at && isAllowed(sendSessionMessage) && (
        <Button variant="default" loading={cancel.isPending} onClick={() => cancel.mutate()}>
          {texts.cancelTurn}
        </Button>
      )}
      {status === 'open' &&
        control === 'agent' &&
        !session.generating_at &&
        !session.auto_generate &&
        isAllowed(sendSessionMessage) && (
          <Button variant="default" loading={generate.isPending} onClick={() => generate.mutate()}>
            {texts.generate}
          </Button>
        )}
      {mayOperate && !isMine && (
        <Button
          leftSection={<IconHandStop size={16} />}
          loading={takeover.isPending}
          onClick={takeover.takeOver}
          h="auto"
          mih={36}
          styles={{ label: { whiteSpace: 'normal', overflowWrap: 'anywhere' } }}
        >
          {takeover.rival === null ? texts.takeOver : texts.takeOverFrom(takeover.rival)}
        </Button>
      )}
      {mayOperate && control === 'operator' && (
        <Button variant="default" loading={handBack.isPending} onClick={() => handBack.mutate()}>
          {texts.handBack}
        </Button>
      )}
      <SessionMenu session={session} />
    </>
  )
  const failure = takeover.error ?? handBack.error ?? cancel.error ?? generate.error
  return (
    <Page
      title={session.name ?? texts.unnamed}
      intro={
        <Stack gap={6}>
          <Participants session={session} />
          <Group gap="sm">
            <SessionBadges session={session} />
            <Badge variant="default" role="status">
              {isLive ? texts.live : texts.reconnecting}
            </Badge>
          </Group>
        </Stack>
      }
      actions={actions}
    >
      {failure && <FailureAlert error={failure} />}
      {attention && control === 'agent' && (
        <Alert color="orange" title={texts.attention}>
          {visible(attention.reason ?? '')}
        </Alert>
      )}
      {control === 'operator' && (
        <Alert color="indigo" role="status">
          {isMine ? texts.takenOver : texts.taken(takeover.rival ?? texts.colleague)}
        </Alert>
      )}
      <Messages session={session} />
      {mayOperate && (
        <OperatorComposer
          session={session}
          customerName={customerName}
          refusal={isMine ? null : takeover.rival === null ? texts.keptForAgent : texts.keptReply(takeover.rival)}
        />
      )}
      {status === 'open' && control === 'agent' && isAllowed(sendSessionMessage) && <UserComposer session={session} />}
      <NoteComposer session={session} />
      {takeover.dialog}
    </Page>
  )
}

type Entry = { at: string } & (
  | { note: SessionNote; message?: undefined; before?: undefined; isFirst?: undefined }
  | { note?: undefined; message: SessionMessage; before?: number; isFirst: boolean }
)

/** Returns messages and notes by time. Notes from before the first message are left out until all messages are shown. */
function timeline(messages: SessionMessage[], notes: SessionNote[], isWhole: boolean): Entry[] {
  const first = messages[0]?.created_at ?? ''
  const entries: Entry[] = messages.map((message, index) => ({
    at: message.created_at,
    message,
    before: messages[index - 1]?.position,
    isFirst: index === 0,
  }))
  const shown = notes.filter(({ created_at }) => isWhole || created_at >= first).toReversed()
  // A stable sort: notes are after messages of the same time.
  return [...entries, ...shown.map(note => ({ at: note.created_at, note }))].toSorted((one, other) =>
    one.at < other.at ? -1 : one.at > other.at ? 1 : 0,
  )
}

function Messages({ session }: { session: Session }) {
  const { id } = session
  const cache = useQueryClient()
  const notes = useNotes(session)
  const end = useRef<HTMLDivElement>(null)
  const transcript = useQuery<Transcript>({
    queryKey: transcriptKey(id),
    queryFn: async ({ signal }) => {
      const { total } = await listSessionMessages(api, { session_id: id, limit: 1 }, { signal }).page()
      const offset = Math.max(0, total - LATEST)
      const { data } = await listSessionMessages(api, { session_id: id, limit: LATEST, offset }, { signal }).page()
      return { messages: data as SessionMessage[], total }
    },
    staleTime: 30_000,
  })
  const { data: running } = useQuery<Running | null>({
    queryKey: runningKey(id),
    queryFn: () => null,
    initialData: null,
    staleTime: Number.POSITIVE_INFINITY,
  })
  const earlier = useMutation({
    mutationFn: async ({ messages, total }: Transcript) => {
      const shown = messages.length
      const offset = Math.max(0, total - shown - LATEST)
      const limit = total - shown - offset
      return (await listSessionMessages(api, { session_id: id, limit, offset }).page()).data as SessionMessage[]
    },
    onSuccess: older =>
      cache.setQueryData<Transcript>(
        transcriptKey(id),
        all => all && { ...all, messages: [...older, ...all.messages] },
      ),
  })
  const count = transcript.data?.messages.length
  useEffect(() => {
    if (!earlier.isSuccess) end.current?.scrollIntoView({ block: 'nearest' })
  }, [count, running?.text, notes.data?.length, earlier.isSuccess])
  return (
    <Loaded query={transcript} operation={listSessionMessages}>
      {({ messages, total }) => {
        const shown = timeline(messages, notes.data ?? [], messages.length === total)
        if (shown.length === 0 && !running)
          return (
            <Notice icon={<IconMessage />} title={texts.noMessages}>
              {texts.noMessagesText}
            </Notice>
          )
        return (
          <Stack gap="md" role="log" aria-label={texts.transcript} aria-live="polite">
            {messages.length < total && (
              <Button
                variant="default"
                size="xs"
                loading={earlier.isPending}
                onClick={() => earlier.mutate({ messages, total })}
                style={{ alignSelf: 'center' }}
              >
                {texts.earlier}
              </Button>
            )}
            {notes.error && <FailureAlert error={notes.error} />}
            {shown.map(({ note, message, before, isFirst }) =>
              note ? (
                <NoteCard key={note.id} note={note} />
              ) : (
                <MessageCard
                  key={message.document_id}
                  message={message}
                  menu={
                    <MessageMenu
                      session={session}
                      message={message}
                      before={before}
                      isFirst={isFirst && messages.length === total}
                    />
                  }
                >
                  <MessageFeedback session={session} message={message} />
                </MessageCard>
              ),
            )}
            {running && (running.text || running.tools.length > 0 || running.error) && <RunningCard {...running} />}
            <div ref={end} />
          </Stack>
        )
      }}
    </Loaded>
  )
}

function RunningCard({ text, tools, error }: Running) {
  return (
    <Box maw="85%" style={{ alignSelf: 'flex-start' }} aria-live="off">
      <Card withBorder padding="md" radius="lg">
        {tools.map(({ id, label, ok }) => (
          <Group key={id} gap="sm" mb={4}>
            <Text size="sm" className="mono">
              {visible(label)}
            </Text>
            <Badge variant="default" size="sm">
              {ok === undefined
                ? strings.playground.running
                : ok
                  ? strings.playground.succeeded
                  : strings.playground.failedCall}
            </Badge>
          </Group>
        ))}
        {text && <StreamingText text={text} />}
        {error && <Text size="sm">{`${texts.turnFailed}: ${visible(error)}`}</Text>}
      </Card>
    </Box>
  )
}
