import { Alert, Badge, Box, Button, Card, Group, Stack, Text, Textarea } from '@mantine/core'
import type { Session, SessionMessage } from '@muster/client'
import {
  cancelSession,
  generateSessionReply,
  getSession,
  handbackSession,
  listSessionMessages,
  sendOperatorMessage,
  sendSessionMessage,
  streamSession,
  takeOverSession,
} from '@muster/client/operations'
import { IconHandStop, IconMessage, IconSend } from '@tabler/icons-react'
import { type QueryClient, useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useDraft } from '#components/draft.tsx'
import { MessageCard } from '#components/message.tsx'
import { Page } from '#components/page.tsx'
import { FailureAlert, Loaded, Notice } from '#components/states.tsx'
import { StreamingText } from '#components/streaming-text.tsx'
import { visible } from '#components/text.tsx'
import { useStream } from '#live.ts'
import { useMe, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { MessageFeedback, MessageMenu, SessionMenu } from './session-actions.tsx'
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
  const keep = (changed: object) =>
    cache.setQueryData<Session>(recordKey(id), before => before && { ...before, ...changed })
  const takeOver = useMutation({
    mutationFn: async () => takeOverSession(api, { session_id: id }),
    onSuccess: keep,
  })
  const handBack = useMutation({
    mutationFn: async () => handbackSession(api, { session_id: id }),
    onSuccess: keep,
  })
  const cancel = useMutation({ mutationFn: async () => cancelSession(api, { session_id: id }) })
  const generate = useMutation({ mutationFn: async () => generateSessionReply(api, { session_id: id }) })
  const isMine = control === 'operator' && assigned_to === me?.id
  const mayOperate = isAllowed(takeOverSession) && status === 'open'
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
        <Button leftSection={<IconHandStop size={16} />} loading={takeOver.isPending} onClick={() => takeOver.mutate()}>
          {texts.takeOver}
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
  const failure = takeOver.error ?? handBack.error ?? cancel.error ?? generate.error
  return (
    <Page
      title={session.name ?? texts.unnamed}
      intro={
        <Group gap="sm">
          <SessionBadges session={session} />
          <Badge variant="default" role="status">
            {isLive ? texts.live : texts.reconnecting}
          </Badge>
        </Group>
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
          {isMine ? texts.takenOver : texts.taken}
        </Alert>
      )}
      <Messages session={session} />
      {status === 'open' && isMine && <Composer key="operator" sessionId={id} isOperator />}
      {status === 'open' && control === 'agent' && isAllowed(sendSessionMessage) && <UserComposer session={session} />}
    </Page>
  )
}

function Messages({ session }: { session: Session }) {
  const { id } = session
  const cache = useQueryClient()
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
  }, [count, running?.text, earlier.isSuccess])
  return (
    <Loaded query={transcript} operation={listSessionMessages}>
      {({ messages, total }) => {
        if (messages.length === 0 && !running)
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
            {messages.map((message, index) => (
              <MessageCard
                key={message.document_id}
                message={message}
                menu={
                  <MessageMenu
                    session={session}
                    message={message}
                    before={messages[index - 1]?.position}
                    isFirst={index === 0 && messages.length === total}
                  />
                }
              >
                <MessageFeedback session={session} message={message} />
              </MessageCard>
            ))}
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

/** The composer of messages as the user; in a session of an end user only on request, because these are not the end user's. */
function UserComposer({ session: { id, actor_id } }: { session: Session }) {
  const [isOpen, setOpen] = useState(actor_id === null)
  if (isOpen) return <Composer sessionId={id} />
  return (
    <Group gap="sm" justify="space-between">
      <Text size="sm" c="dimmed">
        {texts.ofEndUser}
      </Text>
      <Button variant="subtle" size="xs" onClick={() => setOpen(true)}>
        {texts.writeAsUser}
      </Button>
    </Group>
  )
}

function Composer({ sessionId, isOperator = false }: { sessionId: string; isOperator?: boolean }) {
  const { value: text, setValue: setText } = useDraft(isOperator ? 'reply' : 'message', '')
  const label = isOperator ? texts.asOperator : texts.asUser
  const send = useMutation({
    mutationFn: async (message: string) => {
      const args = { session_id: sessionId, message }
      await (isOperator ? sendOperatorMessage(api, args) : sendSessionMessage(api, args))
    },
    onSuccess: () => setText(''),
  })
  const submit = () => text.trim() && !send.isPending && send.mutate(text.trim())
  return (
    <Card withBorder padding="md" radius="lg" style={{ position: 'sticky', bottom: 12 }} shadow="sm">
      <Stack gap="sm">
        <Textarea
          label={label}
          autosize
          minRows={2}
          maxRows={8}
          value={text}
          onChange={event => setText(event.currentTarget.value)}
          onKeyDown={event => {
            if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
            event.preventDefault()
            submit()
          }}
        />
        {send.error && <FailureAlert error={send.error} />}
        <Group justify="flex-end">
          <Button
            leftSection={<IconSend size={16} />}
            loading={send.isPending}
            disabled={!text.trim()}
            onClick={submit}
          >
            {texts.send}
          </Button>
        </Group>
      </Stack>
    </Card>
  )
}
