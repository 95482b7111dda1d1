import { z } from 'zod'
import { timeRangeCondition } from '../../core/api/lists.ts'
import { allOf, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { type UsageRow, usageKind } from './model.ts'

const HOUR_MS = 3_600_000

/** What groups usage: an expression over events or roll-ups `t`, the columns it reads, and whether the roll-ups have them. */
type Dimension = { key: Fragment; columns: readonly string[]; rolled: boolean }

const column = (name: string, rolled: boolean): Dimension => ({
  key: sql.fragment`nullif(${sql.identifier(['t', name])}, '')`,
  columns: [name],
  rolled,
})

/** What usage can be grouped by; a day is one of UTC. */
export const DIMENSIONS = {
  model: { ...column('model', true), columns: ['model', 'ai_provider_id'] },
  ai_provider: column('ai_provider_id', true),
  agent: column('agent_id', true),
  orchestration_run: column('orchestration_run_id', false),
  day: { key: sql.fragment`to_char(t.at at time zone 'UTC', 'YYYY-MM-DD')`, columns: ['at'], rolled: true },
  meter_type: column('meter_type', true),
  actor: column('actor_id', false),
  session: column('session_id', false),
  source: column('source', true),
  trigger: column('trigger_id', false),
  action: column('action_id', false),
  publisher_project: column('publisher_project_id', true),
  project: column('project_id', true),
} satisfies Record<string, Dimension>

export type GroupBy = keyof typeof DIMENSIONS

export const INTERVALS = ['hour', 'day', 'month'] as const
export type Interval = (typeof INTERVALS)[number]

/** Filters that the roll-ups have the columns for. */
const ROLLED_FILTERS = ['agent_id', 'ai_provider_id', 'meter_type', 'model', 'source']

/** Which usage a report is about. */
export type UsageSelection = {
  /** Null for every project. */
  project: string | null
  from: Date | null
  to: Date | null
  /** Conditions over `t`, by the filters that they come from. */
  filters: Partial<Record<string, Fragment>>
  /** Further rows are left out by policies: null when none are. */
  visible: Fragment | null
}

const cost = z.number().nullable()

const Sums = z.object({
  events: z.int(),
  cost_usd: cost,
  input_tokens: z.int(),
  input_cost: cost,
  cached_tokens: z.int(),
  cached_cost: cost,
  cache_write_tokens: z.int(),
  cache_write_cost: cost,
  output_tokens: z.int(),
  output_cost: cost,
  reasoning_tokens: z.int(),
  others: z.array(z.object({ component: z.string(), unit: z.string(), quantity: z.number(), cost_usd: cost })),
})
export type Sums = z.output<typeof Sums>

const added = [
  'events',
  'quantity',
  'cost_usd',
  'input_tokens',
  'input_cost',
  'cached_tokens',
  'cached_cost',
  'cache_write_tokens',
  'cache_write_cost',
  'output_tokens',
  'output_cost',
  'reasoning_tokens',
]

/** `sum(p.x) as x` for what adds up. */
const sumsOf = (alias: string): Fragment =>
  sql.fragment`${sql.join(
    added.map(name => sql.fragment`sum(${sql.identifier([alias, name])}) as ${sql.identifier([name])}`),
    sql.fragment`, `,
  )}`

type Span = { from: Date | null; to: Date | null }

/** A bound whose next hour still has a year of four digits, which is all that the database reads. */
const bounded = (time: Date | null): Date | null => time && new Date(Math.min(time.getTime(), LAST_MS))
const LAST_MS = Date.UTC(9999, 11, 31)

/**
 * The hours that lie within the bounds as a whole, and what is before and after them. Bounds are inclusive, to the
 * millisecond; hours begin at `from` and end before `to`.
 */
function split(span: Span): { hours: Span | null; edges: Span[] } {
  const { from, to } = { from: bounded(span.from), to: bounded(span.to) }
  const first = from && new Date(Math.ceil(from.getTime() / HOUR_MS) * HOUR_MS)
  const last = to && new Date(Math.floor((to.getTime() + 1) / HOUR_MS) * HOUR_MS)
  if (first && last && first >= last) return { hours: null, edges: [{ from, to }] }
  const edges: Span[] = []
  if (from && first && from < first) edges.push({ from, to: new Date(first.getTime() - 1) })
  if (to && last && last <= to) edges.push({ from: last, to })
  return { hours: { from: first, to: last }, edges }
}

/** The events of a selection. */
const rowsOf = (selection: UsageSelection): Fragment =>
  allOf([
    ofProject(selection),
    timeRangeCondition(sql.fragment`t.created_at`, selection),
    ...Object.values(selection.filters),
    selection.visible,
  ])

const fromEvents = (selection: UsageSelection, span: Span): Fragment => sql.fragment`
  select t.project_id, t.created_at as at, t.meter_type, t.model, t.ai_provider_id, t.agent_id, t.source, t.publisher_project_id,
    t.orchestration_run_id, t.actor_id, t.session_id, t.trigger_id, t.action_id, p.*
  from usage_events t cross join lateral usage_parts(t.components, t.cost_usd) p
  where ${rowsOf({ ...selection, ...span })}`

/**
 * The roll-ups of a selection by the columns that are read. Adding up first costs a third of working out the key or the
 * interval of each row.
 */
function fromRollups(selection: UsageSelection, { from, to }: Span, columns: readonly string[]): Fragment {
  const named = [...columns.filter(name => name !== 'at'), 'component', 'unit'].map(name => sql.identifier(['t', name]))
  const kept = columns.includes('at') ? [sql.fragment`t.hour`, ...named] : named
  return sql.fragment`
    select ${columns.includes('at') ? sql.fragment`t.hour as at, ` : sql.fragment``}${sql.join(named, sql.fragment`, `)}, ${sumsOf('t')}
    from usage_rollups t
    where ${allOf([
      ofProject(selection),
      from && sql.fragment`t.hour >= ${from.toISOString()}::timestamptz`,
      to && sql.fragment`t.hour < ${to.toISOString()}::timestamptz`,
      ...Object.values(selection.filters),
    ])}
    group by ${sql.join(kept, sql.fragment`, `)}`
}

const ofProject = ({ project }: UsageSelection): Fragment | null =>
  project === null ? null : sql.fragment`t.project_id = ${project}`

/**
 * What is selected, added up by a key, an AI provider and a time: of whole hours out of the roll-ups, where these know what is
 * asked for, by the primary key of usage_rollups; the rest out of events, by usage_events_project or the index of a filter.
 */
function facts(selection: UsageSelection, group: GroupBy | null, interval: Interval | null): Fragment {
  const { key, columns, rolled } = group === null ? EVERYTHING : DIMENSIONS[group]
  const known =
    rolled && selection.visible === null && Object.keys(selection.filters).every(name => ROLLED_FILTERS.includes(name))
  const { hours, edges } = known ? split(selection) : { hours: null, edges: [selection] }
  const read = [...new Set([...columns, ...(interval ? ['at'] : [])])]
  const parts = [
    ...(hours ? [fromRollups(selection, hours, read)] : []),
    ...edges.map(edge => fromEvents(selection, edge)),
  ]
  return sql.fragment`${sql.join(
    parts.map(
      part => sql.fragment`
        select ${key} as key, ${group === 'model' ? sql.fragment`nullif(t.ai_provider_id, '')` : sql.fragment`null::text`} as ai_provider_id,
          ${interval ? sql.fragment`date_trunc(${interval}, t.at, 'UTC')` : sql.fragment`null::timestamptz`} as start, t.component, t.unit, ${sumsOf('t')}
        from (${part}) t group by 1, 2, 3, 4, 5`,
    ),
    sql.fragment` union all `,
  )}`
}

const EVERYTHING: Dimension = { key: sql.fragment`null::text`, columns: [], rolled: true }

/** The figures of what is added up by component already. */
const figures = sql.fragment`
  coalesce(sum(s.events), 0)::int8 as events, sum(s.cost_usd) filter (where s.component = '') as cost_usd,
  coalesce(sum(s.input_tokens), 0)::int8 as input_tokens, sum(s.input_cost) as input_cost,
  coalesce(sum(s.cached_tokens), 0)::int8 as cached_tokens, sum(s.cached_cost) as cached_cost,
  coalesce(sum(s.cache_write_tokens), 0)::int8 as cache_write_tokens, sum(s.cache_write_cost) as cache_write_cost,
  coalesce(sum(s.output_tokens), 0)::int8 as output_tokens, sum(s.output_cost) as output_cost,
  coalesce(sum(s.reasoning_tokens), 0)::int8 as reasoning_tokens,
  coalesce(jsonb_agg(jsonb_build_object('component', s.component, 'unit', s.unit, 'quantity', s.quantity, 'cost_usd', s.cost_usd))
    filter (where s.component <> ''), '[]') as others`

const Bucket = Sums.extend({
  whole: z.boolean(),
  key: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
  buckets: z.int(),
})
export type Bucket = z.output<typeof Bucket>

/** A page of buckets, dearest first, and the sums over all of them with how many there are, in one statement. */
export async function aggregateEvents(
  db: Queryable,
  selection: UsageSelection,
  group: GroupBy | null,
  page: { limit: number; offset: number },
): Promise<{ totals: Sums; groups: readonly Bucket[]; total: number }> {
  const rows = await db.any(sql.type(Bucket)`
    with facts as (${facts(selection, group, null)}),
      sums as (
        select key, ai_provider_id, component, unit, grouping(key) = 1 as whole, ${sumsOf('f')} from facts f
        group by grouping sets ((key, ai_provider_id, component, unit), (component, unit))),
      buckets as (
        select s.key, s.ai_provider_id, ${figures} from sums s where not s.whole group by s.key, s.ai_provider_id),
      page as (
        select false as whole, key, ai_provider_id, 0::int8 as buckets, ${columns} from buckets
        order by cost_usd desc nulls last, key, ai_provider_id limit ${group === null ? 0 : page.limit} offset ${page.offset})
    select * from page
    union all
    select true, null, null, (select count(*) from buckets), ${figures} from sums s where s.whole
    order by whole, cost_usd desc nulls last, key, ai_provider_id`)
  const whole = rows.find(row => row.whole) as Bucket
  return { totals: whole, groups: rows.filter(row => !row.whole), total: group === null ? 0 : whole.buckets }
}

/** The columns of figures, in their order. */
const columns = sql.fragment`${sql.join(
  Object.keys(Sums.shape).map(name => sql.identifier([name])),
  sql.fragment`, `,
)}`

const Point = Sums.extend({
  start: z.string(),
  whole: z.boolean(),
  key: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
})
export type Point = z.output<typeof Point>

/**
 * The sums of each interval of UTC that has usage, and of its groups, in the order of time: at most `limit` rows, so that
 * one more than wanted says that there are too many.
 */
export const usageSeries = (
  db: Queryable,
  selection: UsageSelection,
  interval: Interval,
  group: GroupBy | null,
  limit: number,
): Promise<readonly Point[]> =>
  db.any(sql.type(Point)`
    with facts as (${facts(selection, group, interval)}),
      sums as (
        select start, ${group === null ? sql.fragment`null as key, null as ai_provider_id, true` : sql.fragment`key, ai_provider_id, grouping(key) = 1`} as whole,
          component, unit, ${sumsOf('f')}
        from facts f
        group by grouping sets (${group === null ? sql.fragment`` : sql.fragment`(start, key, ai_provider_id, component, unit), `}(start, component, unit)))
    select s.start, s.whole, s.key, s.ai_provider_id, ${figures} from sums s
    group by s.start, s.whole, s.key, s.ai_provider_id
    order by s.start, s.whole desc, cost_usd desc nulls last, s.key, s.ai_provider_id limit ${limit}`)

/** How many different ones of what the events name there are. */
export const DistinctCounts = z
  .object({
    generations: z.int().describe('Turns'),
    traces: z.int().describe('Traces'),
    orchestration_runs: z.int().describe('Runs'),
    agents: z.int().describe('Agents'),
    actors: z.int().describe('End users'),
    sessions: z.int().describe('Sessions'),
    ai_providers: z.int().describe('Providers'),
  })
  .describe('How many different ones the events name; what names none does not count')

/** It reads every event of the selection: the roll-ups do not know. */
export const countDistinct = (db: Queryable, selection: UsageSelection): Promise<z.output<typeof DistinctCounts>> =>
  db.one(sql.type(DistinctCounts)`
    select count(distinct t.generation_id) as generations, count(distinct t.trace_id) as traces,
      count(distinct t.orchestration_run_id) as orchestration_runs, count(distinct t.agent_id) as agents,
      count(distinct t.actor_id) as actors, count(distinct t.session_id) as sessions, count(distinct t.ai_provider_id) as ai_providers
    from usage_events t
    where ${rowsOf(selection)}`)

/** Events of a selection behind one, oldest first (index usage_events_project). */
export const usageEventsAfter = (
  db: Queryable,
  selection: UsageSelection,
  after: UsageRow | null,
  limit: number,
): Promise<readonly UsageRow[]> =>
  db.any(usageKind.sql`
    select ${usageKind.columns} from usage_events t
    where ${rowsOf(selection)}
      ${after === null ? sql.fragment`` : sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})`}
    order by t.created_at, t.id limit ${limit}`)

/** All events of a selection, oldest first: of one generation or run (indexes usage_events_generation, usage_events_run). */
export const eventsOf = (db: Queryable, selection: UsageSelection): Promise<readonly UsageRow[]> =>
  db.any(usageKind.sql`
    select ${usageKind.columns} from usage_events t where ${rowsOf(selection)} order by t.created_at, t.id`)

/** The project of the events of a generation or a run; null when there are none (the same indexes). */
export const projectOfEvents = (
  db: Queryable,
  column: 'generation_id' | 'orchestration_run_id',
  id: string,
): Promise<string | null> =>
  db.maybeOneFirst(sql.type(z.object({ project_id: z.string() }))`
    select t.project_id from usage_events t where ${sql.identifier(['t', column])} = ${id} limit 1`)

const RunTotals = z.object({
  own: z.boolean(),
  events: z.int(),
  cost_usd: z.number().nullable(),
  uncached: z.number(),
  cached: z.number(),
  written: z.number(),
  output: z.number(),
  reasoning: z.number(),
})
const runTotals = sql.type(RunTotals)
export type RunTotals = z.output<typeof RunTotals>

/** What runs used, that of one by itself. By usage_events_run. */
export const totalsOfRuns = (db: Queryable, runId: string, runs: Fragment): Promise<readonly RunTotals[]> => {
  const quantity = (component: string) => sql.fragment`coalesce(sum((c.of ->> ${component})::numeric), 0)`
  return db.any(runTotals`
    select t.orchestration_run_id = ${runId} as own, count(*) as events, sum(t.cost_usd) as cost_usd,
      ${quantity('input_tokens')} as uncached, ${quantity('cached_tokens')} as cached,
      ${quantity('cache_write_tokens')} as written, ${quantity('output_tokens')} as output,
      ${quantity('reasoning_tokens')} as reasoning
    from usage_events t cross join lateral (
      select jsonb_object_agg(e ->> 'component', e -> 'quantity') as of from jsonb_array_elements(t.components) e) c
    where t.orchestration_run_id in (${runs}) group by 1`)
}
