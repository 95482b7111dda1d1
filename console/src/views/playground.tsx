import { Badge, Button, Card, Group, Select, Stack, Text, Textarea, VisuallyHidden } from '@mantine/core'
import type { GenerateResult } from '@muster/client'
import { createAgentGenerationStream, listAgents } from '@muster/client/operations'
import { IconPlayerStop, IconRobot, IconSend, IconTool, IconUser } from '@tabler/icons-react'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { lazy, Suspense, useEffect, useRef, useState } from 'react'
import { api } from '../api.ts'
import { Page } from '../components/page.tsx'
import { FailureAlert, Loaded, Notice } from '../components/states.tsx'
import { CopyText, costText, durationText, visible } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import { useConfig } from '../session/gate.tsx'
import { strings } from '../strings.ts'

const Markdown = lazy(() => import('../components/markdown.tsx'))

type Step =
  | { kind: 'model'; number: number; text: string; finish?: string | null; tokens?: number; cost?: number | null }
  | { kind: 'tool'; id: string; name: string; startedAt: number; ms?: number; ok?: boolean }
  | { kind: 'restarted'; number: number }

/** A turn and what has arrived of it. */
type Turn = {
  prompt: string
  steps: Step[]
  startedAt: number
  firstMs?: number
  endedMs?: number
  result?: GenerateResult
  error?: unknown
  isStopped?: boolean
}

type Message = { role: 'user' | 'assistant'; content: string }

/** Streams turns of an agent with each of their steps. */
export function Playground() {
  const projectId = useProjectId()
  const { q: agentId } = useSearch({ strict: false })
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const agents = useQuery({
    queryKey: ['agents', projectId, 'all'],
    queryFn: async ({ signal }) =>
      (await listAgents(api, { project_id: projectId, limit: 100 }, { signal }).page()).data,
  })
  return (
    <Page title={strings.nav.playground} intro={strings.playground.intro}>
      <Loaded query={agents} action="agents:ListAgents">
        {rows =>
          rows.length === 0 ? (
            <Notice
              icon={<IconRobot />}
              title={strings.agents.empty}
              color="indigo"
              action={
                isAllowed('agents:CreateAgent') && (
                  <Button component={Link} to={`/p/${projectId}/agents/new`}>
                    {strings.agents.create}
                  </Button>
                )
              }
            >
              {strings.playground.noAgents}
            </Notice>
          ) : (
            <>
              <Select
                label={strings.playground.agent}
                placeholder={strings.playground.chooseAgent}
                searchable
                allowDeselect={false}
                data={rows.map(({ id, name }) => ({ value: id, label: visible(name ?? strings.agents.unnamed) }))}
                value={agentId ?? rows[0].id}
                onChange={next => void navigate({ to: '.', search: { q: next ?? undefined }, replace: true })}
                maw={360}
              />
              <Exchange key={agentId ?? rows[0].id} agentId={agentId ?? rows[0].id} />
            </>
          )
        }
      </Loaded>
    </Page>
  )
}

/** The turns with one agent: a later turn has the earlier ones as messages. */
function Exchange({ agentId }: { agentId: string }) {
  const cache = useQueryClient()
  const [turns, setTurns] = useState<Turn[]>([])
  const [message, setMessage] = useState('')
  const [announced, setAnnounced] = useState('')
  const abort = useRef<AbortController | null>(null)
  const cancel = useRef<() => Promise<void>>(async () => {})
  const end = useRef<HTMLDivElement>(null)
  const input = useRef<HTMLTextAreaElement>(null)
  const isRunning = turns.length > 0 && turns[turns.length - 1].endedMs === undefined
  useEffect(() => () => abort.current?.abort(), [])

  /** Changes the last turn. */
  const change = (next: (turn: Turn) => Partial<Turn>) =>
    setTurns(all => all.map((turn, index) => (index === all.length - 1 ? { ...turn, ...next(turn) } : turn)))

  const send = async () => {
    const prompt = message.trim()
    if (!prompt || isRunning) return
    const history: Message[] = turns.flatMap(({ prompt, result }) =>
      result?.output
        ? [
            { role: 'user' as const, content: prompt },
            { role: 'assistant' as const, content: result.output.content },
          ]
        : [],
    )
    const startedAt = performance.now()
    setTurns(all => [...all, { prompt, steps: [], startedAt }])
    setMessage('')
    setAnnounced('')
    const controller = new AbortController()
    abort.current = controller
    // Pieces are collected and drawn once a frame.
    let pending = ''
    let frame = 0
    const flush = () => {
      frame = 0
      const text = pending
      pending = ''
      if (text) change(turn => ({ steps: withText(turn.steps, text) }))
    }
    const now = () => performance.now() - startedAt
    try {
      const stream = createAgentGenerationStream(
        api,
        { agent_id: agentId, messages: [...history, { role: 'user', content: prompt }] },
        { signal: controller.signal },
      )
      cancel.current = () => stream.cancel()
      for await (const event of stream) {
        if (event.event === 'delta') {
          pending += event.data.choices[0]?.delta.content ?? ''
          frame ||= requestAnimationFrame(flush)
          change(turn => (turn.firstMs === undefined ? { firstMs: now() } : {}))
          continue
        }
        cancelAnimationFrame(frame)
        flush()
        if (event.event === 'tool_call') {
          const { tool_call_id: id, tool_name: name } = event.data
          change(({ steps }) => ({ steps: [...steps, { kind: 'tool', id, name, startedAt: performance.now() }] }))
        } else if (event.event === 'tool_result') {
          const { tool_call_id, ok } = event.data
          change(({ steps }) => ({
            steps: steps.map(step =>
              step.kind === 'tool' && step.id === tool_call_id
                ? { ...step, ok, ms: performance.now() - step.startedAt }
                : step,
            ),
          }))
        } else if (event.event === 'step_restarted') {
          const { step: number } = event.data
          change(({ steps }) => ({ steps: [...withoutOpenText(steps), { kind: 'restarted', number }] }))
        } else if (event.event === 'step') {
          const { finish_reason: finish, usage } = event.data
          const tokens = usage ? usage.input_tokens + usage.output_tokens : undefined
          change(({ steps }) => ({ steps: settled(steps, { finish, tokens, cost: usage?.cost_usd }) }))
        } else if (event.event === 'completed' || event.event === 'requires_action') {
          change(() => ({ result: event.data as GenerateResult, endedMs: now() }))
          setAnnounced(strings.playground.done)
        } else if (event.event === 'error') {
          change(() => ({ error: new Error(event.data.message ?? strings.sessions.turnFailed), endedMs: now() }))
        }
      }
    } catch (error) {
      cancelAnimationFrame(frame)
      flush()
      const isStopped = controller.signal.aborted
      change(() => ({ endedMs: now(), ...(isStopped ? { isStopped } : { error }) }))
    } finally {
      void cache.invalidateQueries({ queryKey: ['start'] })
      input.current?.focus()
    }
  }

  const stop = () => {
    void cancel.current().catch(() => {})
    abort.current?.abort()
  }

  const last = turns[turns.length - 1]
  const length = last?.steps.length ?? 0
  useEffect(() => {
    end.current?.scrollIntoView({ block: 'nearest' })
  }, [turns.length, length, last?.endedMs])

  return (
    <Stack gap="md">
      {turns.length === 0 && (
        <Notice icon={<IconRobot />} title={strings.playground.empty} color="indigo">
          {strings.playground.emptyText}
        </Notice>
      )}
      {turns.map((turn, index) => (
        <TurnCard key={index} turn={turn} agentId={agentId} />
      ))}
      <div ref={end} />
      <VisuallyHidden role="status" aria-live="polite">
        {announced}
      </VisuallyHidden>
      <Card withBorder padding="md" radius="lg" style={{ position: 'sticky', bottom: 12 }} shadow="sm">
        <Stack gap="sm">
          <Textarea
            ref={input}
            aria-label={strings.playground.message}
            placeholder={strings.playground.placeholder}
            autosize
            minRows={2}
            maxRows={8}
            value={message}
            onChange={event => setMessage(event.currentTarget.value)}
            onKeyDown={event => {
              if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
              event.preventDefault()
              void send()
            }}
            data-autofocus
          />
          <Group justify="flex-end" gap="sm">
            {turns.length > 0 && !isRunning && (
              <Button variant="default" onClick={() => setTurns([])}>
                {strings.playground.clear}
              </Button>
            )}
            {isRunning ? (
              <Button variant="default" leftSection={<IconPlayerStop size={16} />} onClick={stop}>
                {strings.playground.stop}
              </Button>
            ) : (
              <Button leftSection={<IconSend size={16} />} onClick={() => void send()} disabled={!message.trim()}>
                {strings.playground.send}
              </Button>
            )}
          </Group>
        </Stack>
      </Card>
    </Stack>
  )
}

const isOpenText = (step: Step | undefined): boolean => step?.kind === 'model' && step.finish === undefined

/** Adds text to the model call that runs, which it starts if there is none. */
function withText(steps: Step[], text: string): Step[] {
  const last = steps[steps.length - 1]
  if (last?.kind === 'model' && isOpenText(last)) return [...steps.slice(0, -1), { ...last, text: last.text + text }]
  const number = steps.filter(({ kind }) => kind === 'model').length + 1
  return [...steps, { kind: 'model', number, text }]
}

/** Removes the text of the running model call: it comes again. */
const withoutOpenText = (steps: Step[]): Step[] => steps.filter(step => !isOpenText(step))

/** Completes the model call of a step; a call without text is added before the tools that it called. */
function settled(steps: Step[], facts: { finish: string | null; tokens?: number; cost?: number | null }): Step[] {
  const index = steps.findLastIndex(isOpenText)
  if (index >= 0) return steps.map((step, at) => (at === index ? { ...step, ...facts } : step) as Step)
  const number = steps.filter(({ kind }) => kind === 'model').length + 1
  const from = steps.findLastIndex(({ kind }) => kind !== 'tool') + 1
  return [...steps.slice(0, from), { kind: 'model', number, text: '', ...facts }, ...steps.slice(from)]
}

function TurnCard({ turn, agentId }: { turn: Turn; agentId: string }) {
  const { prompt, steps, result, error, firstMs, endedMs, isStopped } = turn
  const projectId = useProjectId()
  const { base_url } = useConfig()
  const curl = `curl ${base_url}/api/v1/agents/${agentId}/generate \\
  -H "Authorization: Bearer $MUSTER_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '${JSON.stringify({ prompt }).replaceAll("'", "'\\''")}'`
  const code = `import { Muster } from '@muster/client'

const muster = new Muster({ baseUrl: '${base_url}', token: process.env.MUSTER_KEY })
const turn = muster.agents.generateStream({ agent_id: '${agentId}', prompt: ${JSON.stringify(prompt)} })
for await (const piece of turn.text()) process.stdout.write(piece)`
  return (
    <Stack gap="sm" component="article" aria-label={visible(prompt.slice(0, 80))}>
      <Card padding="md" radius="lg" withBorder bg="var(--mantine-color-default-hover)">
        <Group gap="xs" mb={4}>
          <IconUser size={16} aria-hidden />
          <Text size="sm" fw={600}>
            {strings.playground.you}
          </Text>
        </Group>
        <Text component="div" className="wrap">
          {visible(prompt)}
        </Text>
      </Card>
      <Card padding="md" radius="lg" withBorder>
        <Stack gap="md" aria-busy={endedMs === undefined}>
          {steps.map((step, index) => (
            <StepView key={index} step={step} isRunning={endedMs === undefined} />
          ))}
          {steps.length === 0 && endedMs === undefined && (
            <Text c="dimmed" size="sm">
              {strings.playground.running} …
            </Text>
          )}
          {error !== undefined && <FailureAlert error={error} title={strings.sessions.turnFailed} />}
          {isStopped && (
            <Text size="sm" c="dimmed">
              {strings.playground.stopped}
            </Text>
          )}
          {result?.status === 'requires_action' && (
            <Group gap="sm">
              <Text size="sm">{strings.playground.paused}</Text>
              <Button component={Link} to={`/p/${projectId}/inbox`} variant="default" size="xs">
                {strings.playground.inbox}
              </Button>
            </Group>
          )}
          {endedMs !== undefined && (
            <Group gap="lg" pt="sm" style={{ borderTop: '1px solid var(--mantine-color-default-border)' }}>
              {firstMs !== undefined && <Figure label={strings.playground.first} value={durationText(firstMs)} />}
              <Figure label={strings.playground.total} value={durationText(endedMs)} />
              {result?.usage && (
                <>
                  <Figure
                    label={strings.playground.tokens}
                    value={`${result.usage.input_tokens.toLocaleString()} + ${result.usage.output_tokens.toLocaleString()}`}
                  />
                  <Figure label={strings.playground.cost} value={costText(result.usage.cost_usd)} />
                </>
              )}
              {result && <Figure label={strings.playground.version} value={String(result.agent_version)} />}
              <Group gap="sm" ml="auto">
                <CopyText text={curl} label={`${strings.playground.copyAs} curl`} />
                <CopyText text={code} label="TypeScript" />
              </Group>
            </Group>
          )}
        </Stack>
      </Card>
    </Stack>
  )
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <Stack gap={0}>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text size="sm" fw={600} style={{ fontVariantNumeric: 'tabular-nums' }}>
        {value}
      </Text>
    </Stack>
  )
}

function StepView({ step, isRunning }: { step: Step; isRunning: boolean }) {
  if (step.kind === 'restarted')
    return (
      <Text size="sm" c="dimmed">
        {strings.playground.restarted(step.number)}
      </Text>
    )
  if (step.kind === 'tool') {
    const { name, ok, ms } = step
    const state =
      ok === undefined ? strings.playground.running : ok ? strings.playground.succeeded : strings.playground.failedCall
    return (
      <Group gap="sm" wrap="nowrap" align="center">
        <IconTool size={16} aria-hidden />
        <Text size="sm">
          {strings.playground.toolCall} <span className="mono">{visible(name)}</span>
        </Text>
        <Badge variant="default" size="sm">
          {state}
        </Badge>
        {ms !== undefined && (
          <Text size="sm" c="dimmed">
            {durationText(ms)}
          </Text>
        )}
      </Group>
    )
  }
  const { number, text, finish, tokens, cost } = step
  const isStreaming = isRunning && finish === undefined
  return (
    <Stack gap={6}>
      <Group gap="sm">
        <IconRobot size={16} aria-hidden />
        <Text size="sm" fw={600}>
          {strings.playground.modelCall(number)}
        </Text>
        {tokens !== undefined && (
          <Text size="sm" c="dimmed">
            {tokens.toLocaleString()} {strings.playground.tokens.toLowerCase()}, {costText(cost)}
          </Text>
        )}
        {finish && (
          <Badge variant="default" size="sm">
            {visible(finish)}
          </Badge>
        )}
      </Group>
      {isStreaming ? (
        <Text component="div" className="wrap">
          {visible(text)}
        </Text>
      ) : (
        text && (
          <Suspense fallback={<Text className="wrap">{visible(text)}</Text>}>
            <Markdown text={text} />
          </Suspense>
        )
      )}
    </Stack>
  )
}
