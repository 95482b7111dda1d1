import retryFields from 'fields:retryRun'
import { Alert, Badge, Box, Button, Drawer, Group, Skeleton, Stack, Text, Title } from '@mantine/core'
import type { OrchestrationNode, OrchestrationRun } from '@muster/client'
import {
  cancelRun,
  getOrchestrationVersion,
  getRun,
  listRuns,
  pauseRun,
  resumeRun,
  retryRun,
  streamOrchestrationRun,
  submitHumanInput,
} from '@muster/client/operations'
import { IconAlertTriangle, IconPlayerPause, IconPlayerPlay, IconPlayerStop, IconRefresh } from '@tabler/icons-react'
import { type QueryClient, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useEffect, useMemo, useState } from 'react'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { useOrchestrations } from '#choices.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { useFilters } from '#components/filters.ts'
import { RecordLink } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, Section } from '#components/record.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { Status, StatusIcon } from '#components/status.tsx'
import { CopyText, costText, durationText, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { GraphPanel } from '#graph/graph-panel.tsx'
import { HumanForm, Question } from '#graph/human-form.tsx'
import { NodeTypeIcon } from '#graph/node-type.tsx'
import {
  type Attempt,
  type Definition,
  inOrder,
  isEnded,
  isPaused,
  type LiveRun,
  mayRetry,
  type NodeState,
  nodeStates,
  runGraph,
  waitText,
  withoutDefinition,
} from '#graph/run-state.ts'
import { useStream } from '#live.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.runs

/** Nested runs of a node that are listed. */
const NESTED = 20

const runKey = (id: string) => ['run', id]

type RunEvent = ReturnType<typeof streamOrchestrationRun> extends AsyncIterable<infer E> ? E : never

/** Applies an event of the stream to the cache. */
function apply(cache: QueryClient, id: string, event: RunEvent): void {
  const change = (next: (run: LiveRun) => LiveRun) => cache.setQueryData<LiveRun>(runKey(id), run => run && next(run))
  switch (event.event) {
    case 'node.updated':
      change(run => ({ ...run, node_executions: withAttempt(run.node_executions ?? [], event.data) }))
      break
    case 'run.updated':
      change(run => ({ ...run, ...event.data, required_action: event.data.required_actions[0] ?? null }))
      break
    case 'run.settled':
      change(() => event.data)
      break
  }
}

/** Adds an attempt, or changes it. */
function withAttempt(attempts: Attempt[], changed: Attempt): Attempt[] {
  const at = attempts.findIndex(({ node_id, attempt }) => node_id === changed.node_id && attempt === changed.attempt)
  return at < 0 ? [...attempts, changed] : attempts.with(at, { ...attempts[at], ...changed })
}

/** Reads a run; what the stream has brought meanwhile is kept. */
async function readRun(cache: QueryClient, id: string, signal?: AbortSignal): Promise<LiveRun> {
  const run = await getRun(api, { orchestration_run_id: id }, { signal })
  const known = cache.getQueryData<LiveRun>(runKey(id))
  return known && known.updated_at > run.updated_at ? known : run
}

/** A run: its graph as it moves, its nodes, and what a person can do. */
export function RunView() {
  const { runId } = useIds()
  const cache = useQueryClient()
  const run = useQuery<LiveRun>({
    queryKey: runKey(runId),
    queryFn: ({ signal }) => readRun(cache, runId, signal),
  })
  return (
    <Loaded query={run} operation={getRun}>
      {record => <RunPage key={runId} run={record} />}
    </Loaded>
  )
}

function RunPage({ run }: { run: LiveRun }) {
  const { id, project_id, orchestration_id, orchestration_version, status } = run
  const cache = useQueryClient()
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf } = useOrchestrations(project_id)
  const isLive = useStream(id, {
    open: signal => streamOrchestrationRun(api, { orchestration_run_id: id }, { signal }),
    apply: event => apply(cache, id, event),
    onLost: () => void cache.invalidateQueries({ queryKey: runKey(id) }),
    enabled: !isEnded(run),
  })
  const version = useQuery<Definition>({
    queryKey: ['orchestration', orchestration_id, 'version', orchestration_version],
    queryFn: async ({ signal }) => {
      const args = { orchestration_id, version: String(orchestration_version) }
      return (await getOrchestrationVersion(api, args, { signal })).config as Definition
    },
    enabled: isAllowed(getOrchestrationVersion) === true,
    staleTime: Number.POSITIVE_INFINITY,
  })
  const isKnown = version.data !== undefined || version.isError
  const isRefused = isAllowed(getOrchestrationVersion) === false
  return (
    <Page
      title={nameOf(orchestration_id)}
      intro={
        <Group gap="md">
          <Box role="status" display="flex">
            <Status status={status} />
          </Box>
          {!isEnded(run) && (
            <Badge variant="default">{isLive ? strings.sessions.live : strings.sessions.reconnecting}</Badge>
          )}
          <Text size="sm" c="dimmed" component="div">
            <span className="mono">{id}</span> <CopyText text={id} />
          </Text>
        </Group>
      }
      actions={<RunActions run={run} nodes={version.data?.nodes ?? []} />}
    >
      {run.error && (
        <Alert
          color="red"
          icon={<IconAlertTriangle />}
          title={texts.failedAt(visible(run.failed_node_id ?? strings.none))}
        >
          <Text size="sm">{visible(run.error.message)}</Text>
          <Text size="sm" className="mono">
            {run.error.code}
          </Text>
        </Alert>
      )}
      {isPaused(run) && (
        <Alert color="orange" role="status">
          {texts.paused(run.required_actions.find(({ type }) => type === 'paused')?.reason ?? null)}
        </Alert>
      )}
      {isKnown || isRefused ? (
        <RunTabs run={run} definition={version.data ?? withoutDefinition(run)} />
      ) : (
        <Skeleton h={520} radius="lg" />
      )}
    </Page>
  )
}

function RunActions({ run, nodes }: { run: LiveRun; nodes: OrchestrationNode[] }) {
  const { id } = run
  const isAllowed = usePermissions(useProjectId())
  const stale = [runKey(id), ['runs']]
  if (isEnded(run)) return mayRetry(run) && isAllowed(retryRun) ? <RetryButton run={run} nodes={nodes} /> : null
  return (
    <>
      {!isPaused(run) && isAllowed(pauseRun) && (
        <ActionButton
          label={texts.pause}
          size="sm"
          leftSection={<IconPlayerPause size={16} />}
          stale={stale}
          run={async () => pauseRun(api, { orchestration_run_id: id })}
        />
      )}
      {isPaused(run) && isAllowed(resumeRun) && (
        <ActionButton
          label={texts.resume}
          size="sm"
          variant="filled"
          leftSection={<IconPlayerPlay size={16} />}
          stale={stale}
          run={async () => resumeRun(api, { orchestration_run_id: id, wait: false })}
        />
      )}
      {isAllowed(cancelRun) && (
        <ActionButton
          label={texts.cancel}
          size="sm"
          leftSection={<IconPlayerStop size={16} />}
          question={texts.cancelText}
          stale={stale}
          run={async () => cancelRun(api, { orchestration_run_id: id })}
        />
      )}
    </>
  )
}

/** Starts a run that did not succeed again, from a node if one is given. */
function RetryButton({ run, nodes, from }: { run: LiveRun; nodes: OrchestrationNode[]; from?: string }) {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const retry = useAction({
    run: async (values: object) => retryRun(api, { orchestration_run_id: run.id, ...values }),
    stale: [['runs']],
    message: texts.retried,
    onDone: ({ id }) => void navigate({ to: `/p/${projectId}/runs/${id}` }),
  })
  return (
    <FormButton
      label={from === undefined ? texts.retry : texts.retryFrom}
      variant={from === undefined ? 'filled' : 'default'}
      size={from === undefined ? 'sm' : 'xs'}
      leftSection={<IconRefresh size={16} />}
      form={close => (
        <SchemaForm
          schema={retryFields}
          start={from === undefined ? undefined : { from_node_id: from }}
          options={{ from_node_id: nodes.map(({ id }) => ({ value: id, label: id })) }}
          submitLabel={texts.retry}
          isPending={retry.isPending}
          error={retry.error}
          onSubmit={values => retry.mutate(values)}
          onCancel={close}
        />
      )}
    />
  )
}

function RunTabs({ run, definition }: { run: LiveRun; definition: Definition }) {
  return (
    <AddressTabs
      tabs={[
        { value: 'graph', title: texts.graph, content: () => <Nodes run={run} definition={definition} /> },
        { value: 'values', title: texts.values, content: () => <Values run={run} /> },
        { value: 'record', title: strings.record, content: () => <Record run={run} /> },
      ]}
    />
  )
}

function Values({ run }: { run: LiveRun }) {
  const cache = useQueryClient()
  // The stream does not carry values: they are read when they are shown.
  const values = useQuery<LiveRun>({
    queryKey: [...runKey(run.id), 'values', run.updated_at],
    queryFn: ({ signal }) => readRun(cache, run.id, signal),
    placeholderData: previous => previous,
  })
  return (
    <Loaded query={values} operation={getRun}>
      {({ input, output, state, metadata }) => (
        <Stack gap="lg">
          {(
            [
              [texts.input, input],
              [texts.output, output],
              [strings.state, state],
              [texts.metadata, metadata],
            ] as const
          )
            .filter(([, value]) => value !== null)
            .map(([title, value]) => (
              <Section title={title} key={title}>
                <Value value={value} label={title} />
              </Section>
            ))}
        </Stack>
      )}
    </Loaded>
  )
}

function Record({ run }: { run: LiveRun }) {
  const projectId = useProjectId()
  const link = (view: string, id: string | null) =>
    id && (
      <RecordLink to={`/p/${projectId}/${view}/${id}`}>
        <span className="mono">{id}</span>
      </RecordLink>
    )
  return (
    <Section title={strings.record}>
      <Facts
        facts={[
          [texts.orchestration, link('orchestrations', run.orchestration_id)],
          [strings.version, run.orchestration_version],
          [strings.created, run.created_at && <When at={run.created_at} />],
          [strings.started, run.started_at && <When at={run.started_at} />],
          [texts.ended, run.completed_at && <When at={run.completed_at} />],
          [strings.expires, run.expires_at && <When at={run.expires_at} />],
          [texts.startedBy, run.started_by && <span className="mono">{run.started_by.id}</span>],
          [texts.parent, link('runs', run.parent_orchestration_run_id)],
          [texts.retryOf, link('runs', run.retry_of_run_id)],
          [texts.trigger, run.trigger_id && <span className="mono">{run.trigger_id}</span>],
          [texts.cost, run.usage && costText(run.usage.cost_usd)],
          [
            texts.tokens,
            run.usage && `${run.usage.input_tokens.toLocaleString()} + ${run.usage.output_tokens.toLocaleString()}`,
          ],
        ]}
      />
      {run.trace_id && (
        <Group>
          <Button component={Link} to={`/p/${projectId}/traces/${run.trace_id}`} variant="default" size="xs">
            {texts.trace}
          </Button>
        </Group>
      )}
    </Section>
  )
}

/** Returns the time that a node has taken; of a running one until now. */
const timeOf = ({ status, startedAt, endedAt }: NodeState): string | undefined => {
  if (!startedAt) return undefined
  if (endedAt) return durationText(Date.parse(endedAt) - Date.parse(startedAt))
  const ms = Math.max(0, Date.now() - Date.parse(startedAt))
  return status === 'running' ? `${Math.round(ms / 1000)} s` : undefined
}

function Nodes({ run, definition }: { run: LiveRun; definition: Definition }) {
  const { filters, setFilters } = useFilters()
  const [second, setSecond] = useState(0)
  const nodes = useMemo(() => inOrder(definition), [definition])
  const states = useMemo(() => nodeStates(run, nodes), [run, nodes])
  // The time of a node that runs.
  const isTicking = states.some(({ status }) => status === 'running')
  useEffect(() => {
    if (!isTicking) return
    const timer = setInterval(() => setSecond(Date.now()), 1000)
    return () => clearInterval(timer)
  }, [isTicking])
  const graph = useMemo(() => runGraph(states, definition, timeOf), [states, definition, second])
  const opened = states.find(({ id }) => id === filters.node)
  const select = (node: string | undefined) => setFilters({ node })
  const waiting = states.filter(({ action }) => action && action.type !== 'paused')
  return (
    <>
      {waiting.length > 0 && (
        <Group gap="sm" mb="md" role="status">
          <StatusIcon status="awaiting_input" />
          <Text size="sm">{texts.waitingNodes}</Text>
          {waiting.map(({ id }) => (
            <Button key={id} size="xs" variant="default" onClick={() => select(id)}>
              {visible(id)}
            </Button>
          ))}
        </Group>
      )}
      <GraphPanel label={texts.graph} graph={graph} selected={opened?.id ?? null} onSelect={select} />
      <Drawer
        opened={opened !== undefined}
        onClose={() => select(undefined)}
        position="right"
        size="lg"
        title={opened && <Text fw={600}>{visible(opened.id)}</Text>}
        overlayProps={{ backgroundOpacity: 0.2 }}
      >
        {opened && <NodeDetails run={run} state={opened} definition={definition} />}
      </Drawer>
    </>
  )
}

function NodeDetails({ run, state, definition }: { run: LiveRun; state: NodeState; definition: Definition }) {
  const { id, type, status, label, action, wakeAt, startedAt, endedAt, attempts } = state
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const node = definition.nodes.find(each => each.id === id)
  const mayAnswer =
    action !== undefined &&
    ['human_input', 'webhook_receive'].includes(action.type) &&
    isAllowed(submitHumanInput) &&
    !isPaused(run)
  return (
    <Stack gap="lg">
      <Group justify="space-between">
        <Group gap="md">
          <Status status={status} />
          <Group gap={6}>
            <NodeTypeIcon type={type} size={16} />
            <Text size="sm" c="dimmed">
              {visible(type)}
            </Text>
          </Group>
        </Group>
        {mayRetry(run) && isAllowed(retryRun) && <RetryButton run={run} nodes={definition.nodes} from={id} />}
      </Group>
      <Facts
        facts={[
          [texts.waitsFor, waitText(state)],
          [texts.label, label !== null && <span className="mono">{visible(label || '""')}</span>],
          [strings.started, startedAt && <When at={startedAt} />],
          [texts.time, startedAt && endedAt && durationText(Date.parse(endedAt) - Date.parse(startedAt))],
          [texts.wakes, status === 'waiting' && wakeAt && <When at={wakeAt} />],
          [strings.expires, action?.expires_at && <When at={action.expires_at} />],
        ]}
      />
      {mayAnswer && (
        <Section title={texts.answer}>
          <Question action={action} />
          <HumanForm
            key={attempts.length}
            runId={run.id}
            action={action}
            nodes={definition.nodes}
            stale={[runKey(run.id), ['runs']]}
          />
          {action.callback_url && (
            <Text size="sm" component="div">
              {texts.callback} <CopyText text={action.callback_url} />
            </Text>
          )}
        </Section>
      )}
      {action?.approval_id && (
        <Group>
          <Button component={Link} to={`/p/${projectId}/inbox`} size="xs">
            {strings.playground.inbox}
          </Button>
        </Group>
      )}
      {['loop', 'sub_orchestration'].includes(type) && attempts.length > 0 && <NestedRuns run={run} nodeId={id} />}
      <Attempts run={run} state={state} />
      {node && (
        <Section title={texts.definition}>
          <Value value={node} label={texts.definition} />
        </Section>
      )}
    </Stack>
  )
}

/** The attempts of a node with their values, newest first. */
/** The attempts of a node with input and output, which the stream does not carry. */
function useAttempts(run: LiveRun, { id, attempts }: NodeState) {
  const isComplete = attempts.every(({ input }) => input !== undefined)
  const stamp = attempts.map(({ status }) => status).join()
  const read = useQuery<Attempt[]>({
    queryKey: [...runKey(run.id), 'node', id, stamp],
    queryFn: async ({ signal }) => {
      const { node_executions } = await getRun(api, { orchestration_run_id: run.id }, { signal })
      return (node_executions ?? []).filter(({ node_id }) => node_id === id)
    },
    enabled: !isComplete,
    staleTime: Number.POSITIVE_INFINITY,
  })
  return { error: read.error, shown: isComplete ? attempts : (read.data ?? attempts) }
}

function Attempts({ run, state }: { run: LiveRun; state: NodeState }) {
  const projectId = useProjectId()
  const { error: failure, shown } = useAttempts(run, state)
  if (failure) return <FailureAlert error={failure} title={strings.failed.title} />
  return shown.toReversed().map(attempt => {
    const { attempt: number, status, input, output, error, generation_id, started_at, completed_at } = attempt
    return (
      <Section
        key={number}
        title={shown.length > 1 ? texts.attempt(number) : texts.result}
        actions={shown.length > 1 && <Status status={status} />}
      >
        {started_at && completed_at && shown.length > 1 && (
          <Text size="sm" c="dimmed">
            {durationText(Date.parse(completed_at) - Date.parse(started_at))}
          </Text>
        )}
        {error && (
          <Alert color="red" title={error.code}>
            <Text size="sm">{visible(error.message)}</Text>
            {error.meta && <Value value={error.meta} label={texts.error} />}
          </Alert>
        )}
        {(
          [
            [texts.input, input],
            [texts.output, output],
          ] as const
        )
          .filter(([, value]) => value !== null && value !== undefined)
          .map(([title, value]) => (
            <Stack gap={4} key={title}>
              <Title order={3} size="h6">
                {title}
              </Title>
              <Value value={value} label={`${title} ${number}`} />
            </Stack>
          ))}
        {generation_id && (
          <Group>
            <Button component={Link} to={`/p/${projectId}/traces/${generation_id}`} variant="default" size="xs">
              {texts.turn}
            </Button>
          </Group>
        )}
      </Section>
    )
  })
}

function NestedRuns({ run, nodeId }: { run: LiveRun; nodeId: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const nested = useQuery<{ data: OrchestrationRun[]; total: number }>({
    queryKey: [...runKey(run.id), 'nested', nodeId, isEnded(run)],
    queryFn: async ({ signal }) => {
      const args = {
        project_id: projectId,
        parent_orchestration_run_id: run.id,
        parent_node_id: nodeId,
        view: 'summary' as const,
        limit: NESTED,
      }
      return listRuns(api, args, { signal }).page()
    },
    enabled: isAllowed(listRuns) === true,
    refetchInterval: isEnded(run) ? false : every(POLL_MS),
  })
  if (!nested.data) return null
  const { data, total } = nested.data
  return (
    <Section title={texts.nestedCount(total)}>
      {data.map(({ id, status }) => (
        <Group key={id} justify="space-between" gap="sm">
          <RecordLink to={`/p/${projectId}/runs/${id}`}>
            <span className="mono">{id}</span>
          </RecordLink>
          <Status status={status} />
        </Group>
      ))}
      {total > data.length && <Text size="sm">{texts.nestedMore(total - data.length)}</Text>}
    </Section>
  )
}
