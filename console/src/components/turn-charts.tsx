import { Card, Group, SegmentedControl, Select, SimpleGrid, Stack, Table, Text, Title } from '@mantine/core'
import type { GenerationStatistics, UsageTimeseries } from '@muster/client'
import { getGenerationStatistics, getUsageTimeseries } from '@muster/client/operations'
import { keepPreviousData, type UseQueryResult, useQuery } from '@tanstack/react-query'
import { Suspense, useMemo } from 'react'
import { api, every } from '#api.ts'
import { type Operation, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { useFilters } from './filters.ts'
import type { Line } from './line-chart.tsx'
import { TableHead } from './list.tsx'
import { onDemand } from './on-demand.tsx'
import { Section } from './record.tsx'
import { Loaded, Loading } from './states.tsx'
import { costText, durationText } from './text.tsx'

const LineChart = onDemand(async () => (await import('./line-chart.tsx')).default)

const texts = strings.charts
const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const WEEK_MS = 7 * DAY_MS
/** Earlier figures hardly change: turns that were running end. */
const BEFORE_STALE_MS = 10 * 60_000

const PERIODS = {
  day: { interval: 'hour', unit: HOUR_MS, count: 24, pollMs: 60_000 },
  week: { interval: 'hour', unit: HOUR_MS, count: 7 * 24, pollMs: 300_000 },
  month: { interval: 'day', unit: DAY_MS, count: 28, pollMs: 300_000 },
} as const
type Period = keyof typeof PERIODS

type Range = { project_id: string; agent_id?: string; interval: 'hour' | 'day'; from: string; to: string }
type TurnPoint = Omit<GenerationStatistics['points'][number], 'start'>
type UsagePoint = UsageTimeseries['points'][number]['totals']
/** Figures by hour or day, and of the period. */
type Series<Figures> = { points: { at: number; figures: Figures }[]; totals: Figures }

async function readTurns(range: Range, signal: AbortSignal): Promise<Series<TurnPoint>> {
  const { points, totals } = await getGenerationStatistics(api, range, { signal })
  return { points: points.map(({ start, ...figures }) => ({ at: Date.parse(start), figures })), totals }
}

async function readUsage(range: Range, signal: AbortSignal): Promise<Series<UsagePoint>> {
  const { points } = await getUsageTimeseries(api, range, { signal })
  const figures = points.map(point => point.totals)
  const sum = (of: (point: UsagePoint) => number) => figures.reduce((total, point) => total + of(point), 0)
  const input_tokens = sum(point => point.input_tokens)
  const output_tokens = sum(point => point.output_tokens)
  const unpriced_tokens = sum(point => point.unpriced_tokens)
  const totals = {
    ...figures[0],
    cost_usd: figures.every(({ cost_usd }) => cost_usd === null) ? null : sum(({ cost_usd }) => cost_usd ?? 0),
    event_count: sum(({ event_count }) => event_count),
    input_tokens,
    output_tokens,
    unpriced_tokens,
    unpriced_share: unpriced_tokens / Math.max(1, input_tokens + output_tokens),
  }
  return { points: points.map(({ start, totals }) => ({ at: Date.parse(start), figures: totals })), totals }
}

/** Reads the figures of a period up to now, and of the same hours or days of the week before. */
function useSeries<Figures>(
  source: 'turns' | 'usage',
  operation: Operation,
  read: (range: Range, signal: AbortSignal) => Promise<Series<Figures>>,
  period: Period,
  agentId: string | undefined,
  isEmpty: (totals: Figures) => string | null,
): { now: UseQueryResult<Series<Figures>>; before: Series<Figures> | undefined } {
  const projectId = useProjectId()
  const enabled = usePermissions(projectId)(operation) === true
  const { interval, unit, count, pollMs } = PERIODS[period]
  const readRange = (shiftMs: number) => {
    const to = Date.now()
    const from = (Math.floor(to / unit) - count + 1) * unit
    const time = (ms: number) => new Date(ms - shiftMs).toISOString()
    return { project_id: projectId, agent_id: agentId, interval, from: time(from), to: time(to) }
  }
  const queryKey = ['charts', source, projectId, agentId, period]
  const shared = { enabled, placeholderData: keepPreviousData }
  const now = useQuery({
    ...shared,
    queryKey: [...queryKey, 'now'],
    queryFn: ({ signal }) => read(readRange(0), signal),
    refetchInterval: every(pollMs),
  })
  const before = useQuery({
    ...shared,
    // Charts are shown only where there are figures to compare.
    enabled: enabled && now.data !== undefined && isEmpty(now.data.totals) === null,
    queryKey: [...queryKey, 'before'],
    queryFn: ({ signal }) => read(readRange(WEEK_MS), signal),
    staleTime: BEFORE_STALE_MS,
    refetchOnWindowFocus: false,
  })
  return { now, before: before.data }
}

/** What a chart shows of figures. */
type Measure<Figures> = {
  title: string
  /** The figures of the period as text. */
  total: (totals: Figures) => string
  lines: { name: string; of: (figures: Figures) => number | null }[]
  format: (value: number) => string
  /** What the chart leaves out. */
  note?: (totals: Figures) => string | null
}

const count = (value: number) => value.toLocaleString(undefined, { notation: value < 10_000 ? 'standard' : 'compact' })
const percentilesOf = ({ p50, p95 }: TurnPoint['latency_ms']) =>
  p50 === null || p95 === null ? strings.none : texts.percentiles(durationText(p50), durationText(p95))

const TURN_MEASURES: Measure<TurnPoint>[] = [
  {
    title: texts.turns,
    total: ({ turns }) => count(turns),
    lines: [{ name: texts.turns, of: ({ turns }) => turns }],
    format: count,
  },
  {
    title: texts.errors,
    total: ({ errors }) => count(errors),
    lines: [{ name: texts.errors, of: ({ errors }) => errors }],
    format: count,
  },
  {
    title: texts.latency,
    total: ({ latency_ms }) => percentilesOf(latency_ms),
    lines: [
      { name: texts.p50, of: ({ latency_ms }) => latency_ms.p50 },
      { name: texts.p95, of: ({ latency_ms }) => latency_ms.p95 },
    ],
    format: durationText,
  },
  {
    title: texts.firstText,
    total: ({ first_text_ms }) => percentilesOf(first_text_ms),
    lines: [
      { name: texts.p50, of: ({ first_text_ms }) => first_text_ms.p50 },
      { name: texts.p95, of: ({ first_text_ms }) => first_text_ms.p95 },
    ],
    format: durationText,
  },
]

const tokensOf = ({ input_tokens, output_tokens }: UsagePoint) => input_tokens + output_tokens
/** The cost; null if there is usage and none of it has a price. */
const costOf = ({ cost_usd, event_count }: UsagePoint) => cost_usd ?? (event_count === 0 ? 0 : null)

const USAGE_MEASURES: Measure<UsagePoint>[] = [
  {
    title: texts.tokens,
    total: totals => count(tokensOf(totals)),
    lines: [{ name: texts.tokens, of: tokensOf }],
    format: count,
  },
  {
    title: texts.cost,
    total: totals => costText(costOf(totals)),
    lines: [{ name: texts.cost, of: costOf }],
    format: costText,
    note: ({ unpriced_tokens, unpriced_share }) =>
      unpriced_tokens > 0 ? texts.unpriced(count(unpriced_tokens), strings.usage.share(unpriced_share)) : null,
  },
]

const noTurns = ({ turns }: TurnPoint) => (turns === 0 ? texts.noTurns : null)
const noUsage = ({ event_count }: UsagePoint) => (event_count === 0 ? texts.noUsage : null)

/** Lines of a measure, each followed by its values a week before. */
function linesOf<Figures>(
  { lines }: Measure<Figures>,
  now: Series<Figures>,
  before: Series<Figures> | undefined,
): Line[] {
  const earlier = new Map(before?.points.map(({ at, figures }) => [at + WEEK_MS, figures]))
  return lines.flatMap(({ name, of }, index) => {
    const line = (name: string, isBefore: boolean, of: (point: (typeof now.points)[number]) => number | null) => ({
      name,
      isBefore,
      color: index === 0 ? (0 as const) : (1 as const),
      values: now.points.map(of),
    })
    const valueBefore = (figures: Figures | undefined) => (figures === undefined ? null : of(figures))
    return [
      line(name, false, ({ figures }) => of(figures)),
      ...(before ? [line(texts.before(name), true, ({ at }) => valueBefore(earlier.get(at)))] : []),
    ]
  })
}

function MeasureCard<Figures>({
  measure,
  now,
  before,
  isTable,
  isDaily,
}: {
  measure: Measure<Figures>
  now: Series<Figures>
  before: Series<Figures> | undefined
  isTable: boolean
  isDaily: boolean
}) {
  const { title, total, note, format } = measure
  const lines = useMemo(() => linesOf(measure, now, before), [measure, now, before])
  const times = useMemo(() => now.points.map(({ at }) => at / 1000), [now])
  const left = note?.(now.totals)
  return (
    <Card withBorder padding="md" radius="lg" component="section" aria-label={title}>
      <Stack gap="xs">
        <Title order={3} size="h6">
          {title}
        </Title>
        <Group gap="sm" align="baseline">
          <Text size="xl" fw={700} component="span">
            {total(now.totals)}
          </Text>
          {before && (
            <Text size="sm" c="dimmed" component="span">
              {texts.weekBefore(total(before.totals))}
            </Text>
          )}
        </Group>
        {left && <Text size="sm">{left}</Text>}
        {isTable ? (
          <NumberTable title={title} times={times} lines={lines} format={format} isDaily={isDaily} />
        ) : (
          <Suspense fallback={<Loading rows={1} />}>
            <LineChart times={times} lines={lines} format={format} />
          </Suspense>
        )}
      </Stack>
    </Card>
  )
}

function NumberTable({
  title,
  times,
  lines,
  format,
  isDaily,
}: {
  title: string
  times: number[]
  lines: Line[]
  format: (value: number) => string
  isDaily: boolean
}) {
  const time = new Intl.DateTimeFormat(
    undefined,
    isDaily ? { dateStyle: 'medium', timeZone: 'UTC' } : { dateStyle: 'medium', timeStyle: 'short' },
  )
  const titles = [isDaily ? strings.usage.day : texts.hour, ...lines.map(({ name }) => name)]
  return (
    <Table className="rows" verticalSpacing={4} aria-label={title}>
      <TableHead titles={titles} />
      <Table.Tbody>
        {times.map((at, index) => (
          <Table.Tr key={at}>
            <Table.Th fw={400}>{time.format(at * 1000)}</Table.Th>
            {lines.map(({ name, values }) => {
              const value = values[index]
              return (
                <Table.Td key={name} data-title={name}>
                  {value === null ? strings.none : format(value)}
                </Table.Td>
              )
            })}
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  )
}

function Measures<Figures>({
  measures,
  operation,
  series: { now, before },
  isEmpty,
  ...shown
}: {
  measures: Measure<Figures>[]
  operation: Operation
  series: ReturnType<typeof useSeries<Figures>>
  isEmpty: (totals: Figures) => string | null
  isTable: boolean
  isDaily: boolean
}) {
  return (
    <Loaded query={now} operation={operation}>
      {series => {
        const empty = isEmpty(series.totals)
        return empty ? (
          <Text c="dimmed">{empty}</Text>
        ) : (
          <SimpleGrid cols={{ base: 1, md: 2 }} verticalSpacing="md">
            {measures.map(measure => (
              <MeasureCard key={measure.title} measure={measure} now={series} before={before} {...shown} />
            ))}
          </SimpleGrid>
        )
      }}
    </Loaded>
  )
}

/**
 * Charts of the turns and the usage of a project or an agent, compared with the week before; nothing for a caller who may read
 * neither.
 */
export default function TurnCharts({ agentId }: { agentId?: string }) {
  const isAllowed = usePermissions(useProjectId())
  const { filters, setFilters } = useFilters()
  const period = (Object.keys(PERIODS) as Period[]).find(each => each === filters.period) ?? 'week'
  const turns = useSeries('turns', getGenerationStatistics, readTurns, period, agentId, noTurns)
  const usage = useSeries('usage', getUsageTimeseries, readUsage, period, agentId, noUsage)
  const [hasTurns, hasUsage] = [isAllowed(getGenerationStatistics), isAllowed(getUsageTimeseries)]
  if (!hasTurns && !hasUsage) return null
  const shown = { isTable: filters.chart === 'table', isDaily: PERIODS[period].interval === 'day' }
  return (
    <Section
      title={texts.title}
      actions={
        <>
          <Select
            aria-label={strings.usage.period}
            value={period}
            allowDeselect={false}
            onChange={next => setFilters({ period: next === 'week' ? undefined : (next ?? undefined) })}
            data={Object.entries(texts.periods).map(([value, label]) => ({ value, label }))}
            w={200}
          />
          <SegmentedControl
            aria-label={texts.shape}
            value={shown.isTable ? 'table' : 'lines'}
            onChange={next => setFilters({ chart: next === 'table' ? next : undefined })}
            data={Object.entries(texts.shapes).map(([value, label]) => ({ value, label }))}
          />
        </>
      }
    >
      {hasTurns && (
        <Measures
          measures={TURN_MEASURES}
          operation={getGenerationStatistics}
          series={turns}
          isEmpty={noTurns}
          {...shown}
        />
      )}
      {hasUsage && (
        <Measures
          measures={USAGE_MEASURES}
          operation={getUsageTimeseries}
          series={usage}
          isEmpty={noUsage}
          {...shown}
        />
      )}
    </Section>
  )
}
