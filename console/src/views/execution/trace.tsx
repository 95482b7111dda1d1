import { Alert, Anchor, Box, Button, Card, Drawer, Group, Stack, Text, VisuallyHidden } from '@mantine/core'
import { useMediaQuery } from '@mantine/hooks'
import type { GenerationListed, PurgeCounts, Transcript } from '@muster/client'
import {
  cancelGeneration,
  getChain,
  getGeneration,
  getGenerationTranscript,
  getRun,
  getTrace,
  getTraceTree,
  purgeTraceContent,
  retryGeneration,
} from '@muster/client/operations'
import {
  IconEraser,
  IconPlayerPlay,
  IconPlayerStop,
  IconPlayerTrackNext,
  IconPuzzle,
  IconRefresh,
  IconRobot,
  IconSearch,
  IconSparkles,
  IconTool,
} from '@tabler/icons-react'
import { useQueries, useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every } from '#api.ts'
import { useAgents } from '#choices.ts'
import { ActionButton, FormButton, Question } from '#components/actions.tsx'
import { DatasetItemButton } from '#components/dataset-item.tsx'
import { useFilters } from '#components/filters.ts'
import { Page } from '#components/page.tsx'
import { Facts, Part } from '#components/record.tsx'
import { FailureAlert, Loaded, Loading } from '#components/states.tsx'
import { Status, StatusIcon, statusColor, statusText } from '#components/status.tsx'
import { CopyText, costText, durationText, visible, When } from '#components/text.tsx'
import { Tree, TreeToggle } from '#components/tree.tsx'
import { isEnded, type LiveRun } from '#graph/run-state.ts'
import { isRunning, type Subject, turnsOf, type WaterfallRow, waterfallRows } from '#graph/waterfall.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { lastPrompt, PlaygroundLink, Retrieval, StepRequest } from './step-request.tsx'

/** Turns whose steps are read. */
const DETAILED = 50

const texts = strings.traces

/** The waterfall of a trace, by its id or the id of one of its turns. */
export function TraceView() {
  const { traceId: id } = useIds()
  const isTurn = !id.startsWith('trace_')
  const turn = useQuery({
    queryKey: ['generation', id],
    queryFn: async ({ signal }) => getGeneration(api, { generation_id: id }, { signal }),
    enabled: isTurn,
  })
  if (!isTurn) return <Trace key={id} traceId={id} />
  return (
    <Loaded query={turn} operation={getGeneration}>
      {({ trace_id }) => <Trace key={id} traceId={trace_id} turnId={id} />}
    </Loaded>
  )
}

function Trace({ traceId, turnId }: { traceId: string; turnId?: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf } = useAgents(projectId)
  const tree = useQuery<GenerationListed[]>({
    queryKey: ['trace', traceId],
    queryFn: async ({ signal }) =>
      turnsOf(await getTraceTree(api, { trace_id: traceId, include: 'generations' }, { signal })),
    refetchInterval: query => (query.state.data?.some(isRunning) ? every(BUSY_MS)(query) : false),
  })
  const turns = tree.data ?? []
  const mayRead = isAllowed(getGeneration) && isAllowed(getTrace)
  const transcripts = useQueries({
    queries: turns.slice(0, DETAILED).map(({ id, step_count, status, content_redacted_at }) => ({
      queryKey: ['generation', id, 'transcript', step_count, status, content_redacted_at],
      queryFn: async ({ signal }: { signal: AbortSignal }) =>
        getGenerationTranscript(api, { generation_id: id }, { signal }),
      enabled: mayRead === true,
      staleTime: Number.POSITIVE_INFINITY,
      placeholderData: (previous: Transcript | undefined) => previous,
    })),
  })
  const runId = turns.find(({ orchestration_run_id }) => orchestration_run_id !== null)?.orchestration_run_id
  const run = useQuery<LiveRun>({
    queryKey: ['run', runId],
    queryFn: async ({ signal }) => getRun(api, { orchestration_run_id: runId as string }, { signal }),
    enabled: Boolean(runId) && isAllowed(getRun) === true,
    refetchInterval: query => (query.state.data && !isEnded(query.state.data) ? every(BUSY_MS)(query) : false),
  })
  const isRunMissing = Boolean(runId) && isAllowed(getRun) !== false && run.isPending
  const turn = turns.find(({ id }) => id === turnId) ?? turns[0]
  const byTurn = new Map(
    transcripts.flatMap(({ data }) => (data ? [[data.generation_id, data] as [string, Transcript]] : [])),
  )
  return (
    <Page
      title={texts.turnOf(turn ? nameOf(turn.agent_id) : strings.none)}
      intro={
        turn && (
          <Group gap="md">
            <Box role="status" display="flex">
              <Status status={turn.status} />
            </Box>
            <Text size="sm" c="dimmed" component="div">
              <span className="mono">{turn.id}</span> <CopyText text={turn.id} />
            </Text>
            {turn.chain_id && isAllowed(getChain) && (
              <Anchor component={Link} to={`/p/${projectId}/chains/${turn.chain_id}`} size="sm" underline="always">
                {strings.chains.link}
              </Anchor>
            )}
          </Group>
        )
      }
      actions={turn && <TurnActions turn={turn} traceId={traceId} isTraceRunning={turns.some(isRunning)} />}
    >
      <Loaded query={tree} operation={getTraceTree}>
        {all => (
          <>
            {turn?.error && (
              <Alert color="red" title={turn.error.code}>
                <Text size="sm">{visible(turn.error.message)}</Text>
              </Alert>
            )}
            {turn?.content_redacted_at && <Alert color="gray">{texts.erased}</Alert>}
            {all.length > DETAILED && <Text size="sm">{texts.truncated(DETAILED)}</Text>}
            {isRunMissing ? (
              <Loading />
            ) : (
              <Waterfall turns={all} transcripts={byTurn} run={runId ? run.data : undefined} nameOf={nameOf} />
            )}
          </>
        )}
      </Loaded>
    </Page>
  )
}

function TurnActions({
  turn: { id, status },
  traceId,
  isTraceRunning,
}: {
  turn: GenerationListed
  traceId: string
  isTraceRunning: boolean
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const stale = [['trace', traceId], ['generation', id], ['generations']]
  return (
    <>
      {isTraceRunning
        ? isAllowed(cancelGeneration) && (
            <ActionButton
              label={texts.cancel}
              size="sm"
              leftSection={<IconPlayerStop size={16} />}
              stale={stale}
              run={async () => cancelGeneration(api, { generation_id: id })}
            />
          )
        : isAllowed(purgeTraceContent) && (
            <FormButton
              label={texts.purge}
              variant="default"
              leftSection={<IconEraser size={16} />}
              modalSize="md"
              form={close => <Purge traceId={traceId} close={close} />}
            />
          )}
      {status === 'failed' && isAllowed(retryGeneration) && (
        <ActionButton
          label={texts.retry}
          size="sm"
          variant="filled"
          leftSection={<IconRefresh size={16} />}
          stale={stale}
          run={async () => {
            const accepted = (await retryGeneration(api, { generation_id: id, wait: false })) as {
              generation_id?: string
              id?: string
            }
            await navigate({ to: `/p/${projectId}/traces/${accepted.generation_id ?? accepted.id}` })
          }}
        />
      )}
    </>
  )
}

/** Erases the content of a trace, after showing what that would be. */
function Purge({ traceId, close }: { traceId: string; close: () => void }) {
  const preview = useQuery({
    queryKey: ['trace', traceId, 'purge'],
    queryFn: async ({ signal }) =>
      (await purgeTraceContent(api, { trace_id: traceId, dry_run: true }, { signal })) as PurgeCounts,
    gcTime: 0,
    staleTime: 0,
  })
  const counts = Object.entries(preview.data?.counts ?? {})
    .filter(([, count]) => count > 0)
    .map(([kind, count]) => `${count} ${kind.replaceAll('_', ' ')}`)
  return (
    <Question
      text={
        <Stack gap="md">
          {texts.purgeText}
          {preview.isPending && <Loading rows={1} />}
          {preview.data && (
            <Text fw={600}>{counts.length > 0 ? texts.purgeCounts(counts.join(', ')) : texts.purgeNothing}</Text>
          )}
          {preview.error && <FailureAlert error={preview.error} />}
        </Stack>
      }
      label={texts.purge}
      color="red"
      disabled={counts.length === 0}
      run={async () => purgeTraceContent(api, { trace_id: traceId })}
      stale={[['trace', traceId], ['generation'], ['generations']]}
      message={texts.purged}
      close={close}
    />
  )
}

const ICONS: Record<Subject['kind'], typeof IconRobot> = {
  run: IconPlayerTrackNext,
  node: IconPuzzle,
  turn: IconRobot,
  retrieval: IconSearch,
  step: IconPlayerPlay,
  model: IconSparkles,
  tool: IconTool,
}

/** Widths of the columns next to the bars. */
const NAME = '34%'
const FIGURE = 78

function Waterfall({
  turns,
  transcripts,
  run,
  nameOf,
}: {
  turns: GenerationListed[]
  transcripts: ReadonlyMap<string, Transcript>
  run: LiveRun | undefined
  nameOf: (agentId: string) => string
}) {
  const { filters, setFilters } = useFilters()
  const isNarrow = useMediaQuery('(max-width: 47.99em)', undefined, { getInitialValueInEffect: false })
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set())
  const rows = waterfallRows(turns, transcripts, run, closed, nameOf)
  const now = Date.now()
  const begin = Math.min(...rows.map(({ queuedAt, from }) => queuedAt ?? from))
  const end = Math.max(begin + 1, ...rows.map(({ to }) => to ?? now))
  const opened = rows.find(({ id }) => id === filters.row)
  const toggle = (id: string, isOpen: boolean) =>
    setClosed(before => new Set(isOpen ? [...before].filter(each => each !== id) : [...before, id]))
  const axis = { begin, end, now }
  return (
    <Card withBorder radius="lg" padding={0}>
      <Group gap="lg" p="md" pb="xs" justify="space-between">
        <Text fw={600} component="h2" size="md">
          {texts.waterfall}
        </Text>
        <Group gap="md">
          <Legend className="bar-queue">{texts.queue}</Legend>
          <Legend className="bar-work">{texts.work}</Legend>
          <Legend className="bar-within">{texts.inStep}</Legend>
        </Group>
      </Group>
      {!isNarrow && (
        <Group wrap="nowrap" gap={0} px="md" pb={4}>
          <Box w={NAME} />
          {[strings.runs.tokens, strings.runs.cost, strings.runs.time].map(title => (
            <Text key={title} size="xs" c="dimmed" ta="right" w={FIGURE} pr="sm">
              {title}
            </Text>
          ))}
          <Group flex={1} justify="space-between" wrap="nowrap">
            {[0, 0.5, 1].map(part => (
              <Text key={part} size="xs" c="dimmed">
                {durationText((end - begin) * part)}
              </Text>
            ))}
          </Group>
        </Group>
      )}
      <Tree
        label={texts.waterfall}
        rowPx={isNarrow ? 64 : 38}
        maxHeight={560}
        selected={opened?.id ?? null}
        onSelect={row => setFilters({ row })}
        onToggle={toggle}
        rows={rows.map(row => ({
          id: row.id,
          level: row.level,
          isOpen: row.isOpen,
          content: (
            <RowView row={row} axis={axis} isNarrow={isNarrow === true} onToggle={isOpen => toggle(row.id, isOpen)} />
          ),
        }))}
      />
      <Drawer
        opened={opened !== undefined}
        onClose={() => setFilters({ row: undefined })}
        position="right"
        size="lg"
        title={opened && <Text fw={600}>{visible(opened.name)}</Text>}
        overlayProps={{ backgroundOpacity: 0.2 }}
      >
        {opened && <Details row={opened} />}
      </Drawer>
    </Card>
  )
}

function Legend({ className, children }: { className: string; children: string }) {
  return (
    <Group gap={6} wrap="nowrap">
      <Box className={className} w={18} h={10} style={{ flex: 'none' }} />
      <Text size="xs" c="dimmed">
        {children}
      </Text>
    </Group>
  )
}

type Axis = { begin: number; end: number; now: number }

function RowView({
  row,
  axis,
  isNarrow,
  onToggle,
}: {
  row: WaterfallRow
  axis: Axis
  isNarrow: boolean
  onToggle: (isOpen: boolean) => void
}) {
  const { level, name, status, queuedAt, from, to, isExact, tokens, cost, subject } = row
  const Icon = ICONS[subject.kind]
  const ms = (to ?? axis.now) - from
  const figures = [
    tokens?.toLocaleString(),
    cost === undefined ? undefined : costText(cost),
    isExact ? durationText(ms) : undefined,
  ]
  const title = (
    <Group gap={6} wrap="nowrap" w={isNarrow ? '100%' : NAME} pl={(level - 1) * 14} miw={0}>
      <TreeToggle isOpen={row.isOpen} onToggle={onToggle} />
      <StatusIcon status={status} size={14} />
      <Icon size={15} aria-hidden style={{ flex: 'none' }} />
      <Text size="sm" truncate fw={subject.kind === 'turn' || subject.kind === 'run' ? 600 : undefined}>
        {visible(name)}
      </Text>
      <VisuallyHidden>
        {[
          statusText(status),
          queuedAt !== undefined && texts.queued(durationText(Math.max(0, from - queuedAt))),
          !isExact ? texts.inStep : to === null ? texts.still : isNarrow && texts.took(durationText(ms)),
        ]
          .filter(Boolean)
          .join(', ')}
      </VisuallyHidden>
    </Group>
  )
  if (isNarrow)
    return (
      <Stack gap={4} px="md" h="100%" justify="center">
        <Group wrap="nowrap" gap="sm" justify="space-between">
          {title}
          <Text size="xs" c="dimmed" style={{ flex: 'none' }}>
            {figures[2]}
          </Text>
        </Group>
        <Bar row={row} axis={axis} isNarrow={isNarrow} />
      </Stack>
    )
  return (
    <Group wrap="nowrap" gap={0} px="md" h="100%">
      {title}
      {figures.map((figure, index) => (
        <Text key={index} size="xs" c="dimmed" ta="right" w={FIGURE} pr="sm" style={{ flex: 'none' }} truncate>
          {figure}
        </Text>
      ))}
      <Bar row={row} axis={axis} isNarrow={isNarrow} />
    </Group>
  )
}

/** The bar of a row on the time axis: its wait in the queue, then its work. */
function Bar({
  row: { queuedAt, from, to, isExact, status },
  axis: { begin, end, now },
  isNarrow,
}: {
  row: WaterfallRow
  axis: Axis
  isNarrow: boolean
}) {
  const place = (at: number) => `${(100 * (at - begin)) / (end - begin)}%`
  const width = (start: number, stop: number) => `${Math.max(0, (100 * (stop - start)) / (end - begin))}%`
  return (
    <Box flex={isNarrow ? 'none' : 1} h={14} pos="relative" aria-hidden>
      {queuedAt !== undefined && queuedAt < from && (
        <Box className="bar-queue" pos="absolute" left={place(queuedAt)} w={width(queuedAt, from)} h="100%" />
      )}
      <Box
        className={isExact ? 'bar-work' : 'bar-within'}
        pos="absolute"
        left={place(from)}
        w={width(from, to ?? now)}
        miw={3}
        h="100%"
        style={isExact ? { backgroundColor: status === 'completed' ? undefined : statusColor(status) } : undefined}
      />
    </Box>
  )
}

function Details({ row }: { row: WaterfallRow }) {
  const { subject, status, queuedAt, from, to, isExact } = row
  return (
    <Stack gap="lg">
      <Status status={status} />
      <Facts
        facts={[
          [strings.started, <When key="started" at={new Date(queuedAt ?? from).toISOString()} />],
          [texts.queueTime, queuedAt !== undefined && durationText(Math.max(0, from - queuedAt))],
          [texts.workTime, isExact && to !== null && durationText(to - from)],
          [strings.runs.tokens, row.tokens?.toLocaleString()],
          [strings.runs.cost, row.cost !== undefined && costText(row.cost)],
        ]}
      />
      <SubjectView subject={subject} />
    </Stack>
  )
}

function ViewLink({ to, children }: { to: string; children: string }) {
  const projectId = useProjectId()
  return (
    <Button component={Link} to={`/p/${projectId}/${to}`} variant="default" size="xs">
      {children}
    </Button>
  )
}

function SubjectView({ subject }: { subject: Subject }) {
  switch (subject.kind) {
    case 'run':
      return (
        <Group>
          <ViewLink to={`runs/${subject.run.id}`}>{texts.openRun}</ViewLink>
        </Group>
      )
    case 'node': {
      const { run, attempt } = subject
      return (
        <>
          <Group>
            <ViewLink to={`runs/${run.id}?node=${attempt.node_id}`}>{texts.openRun}</ViewLink>
          </Group>
          <Part title={strings.runs.error} value={attempt.error} />
          <Part title={strings.runs.input} value={attempt.input} />
          <Part title={strings.runs.output} value={attempt.output} />
        </>
      )
    }
    case 'turn':
      return <TurnView {...subject} />
    case 'retrieval':
      return <Retrieval transcript={subject.transcript} />
    case 'step':
    case 'model': {
      const { text, finish_reason, model, ai_provider_id, usage, tool_calls, notes, vendor_calls } = subject.step
      return (
        <>
          <Facts
            facts={[
              [texts.model, model && <span className="mono">{visible(model)}</span>],
              [texts.provider, ai_provider_id && <span className="mono">{ai_provider_id}</span>],
              [texts.stop, finish_reason && visible(finish_reason)],
            ]}
          />
          <StepRequest turnId={subject.turnId} step={subject.step.index + 1} />
          <Part title={strings.text} value={text} />
          {tool_calls.length > 0 && <Part title={strings.agents.tools} value={tool_calls} />}
          <Part title={texts.vendorCalls} value={vendor_calls} />
          <Part title={texts.notes} value={notes} />
          <Part title={strings.runs.tokens} value={usage} />
        </>
      )
    }
    case 'tool': {
      const { args, result, error } = subject.call
      return (
        <>
          <Part title={strings.runs.error} value={error} />
          <Part title={texts.arguments} value={args} />
          <Part title={strings.runs.result} value={result} />
        </>
      )
    }
  }
}

function TurnView({ turn, transcript }: { turn: GenerationListed; transcript?: Transcript }) {
  const prompt = lastPrompt(transcript)
  return (
    <>
      <Facts
        facts={[
          [strings.version, turn.agent_version],
          [texts.stop, turn.stop_reason && visible(turn.stop_reason)],
          [texts.source, turn.source && visible(texts.sources[turn.source] ?? turn.source)],
        ]}
      />
      <Group gap="sm">
        <ViewLink to={`agents/${turn.agent_id}`}>{texts.openAgent}</ViewLink>
        {turn.session_id && <ViewLink to={`sessions/${turn.session_id}`}>{texts.openSession}</ViewLink>}
        {turn.orchestration_run_id && <ViewLink to={`runs/${turn.orchestration_run_id}`}>{texts.openRun}</ViewLink>}
        {prompt !== null && <PlaygroundLink agentId={turn.agent_id} prompt={prompt} />}
        {prompt !== null && <DatasetItemButton item={{ input: prompt, expected: transcript?.output?.content ?? '' }} />}
      </Group>
      <Part title={strings.runs.error} value={turn.error} />
      <Part title={strings.runs.output} value={transcript?.output?.object ?? transcript?.output?.content} />
      <Part title={strings.runs.input} value={transcript?.input} />
      <Part title={strings.runs.metadata} value={turn.metadata} />
      <Part title={strings.runs.tokens} value={turn.usage} />
    </>
  )
}
