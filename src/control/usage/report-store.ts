import { z } from 'zod'
import { timeRangeCondition } from '#core/api/lists.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { allOf, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { Interval } from './intervals.ts'
import { type UsageRow, usageKind } from './model.ts'

const HOUR_MS = 3_600_000

/** A dimension: its expression on events or roll-ups `t`, the columns it reads, and whether roll-ups contain them. */
type Dimension = { key: Fragment; columns: readonly string[]; rolled: boolean }

/**
 * Join of the turn of a usage event `t`, the agent version of the turn, and whether the record of the turn exists.
 * Registered by the turns module.
 */
export const turnVersions = extensionPoint<{ join: Fragment; version: Fragment; exists: Fragment }>({
  name: 'agent versions of turns',
  folder: 'control/usage',
  description: 'Joins the turn of a usage event with the version of its agent, for reports',
})

/** Returns the ratings of turns of a project by agent version. Registered by the feedback module. */
export const turnRatings = extensionPoint<
  (db: Queryable, project: string, turns: Fragment) => Promise<readonly TurnRatings[]>
>({
  name: 'ratings of turns',
  folder: 'control/usage',
  description: 'Counts the ratings of turns by the version of the agent, for reports',
})
type TurnRatings = { key: string | null; up: number; down: number }

const column = (name: string, rolled: boolean): Dimension => ({
  key: sql.fragment`nullif(${sql.identifier(['t', name])}, '')`,
  columns: [name],
  rolled,
})

/** Dimensions of usage; days are in UTC. */
export const DIMENSIONS = {
  model: { ...column('model', true), columns: ['model', 'ai_provider_id'] },
  served_model: column('served_model', false),
  service_tier: column('service_tier', false),
  ai_provider: column('ai_provider_id', true),
  agent: column('agent_id', true),
  agent_version: column('agent_version', false),
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

/** Filters on columns of roll-ups. */
const ROLLED_FILTERS = ['agent_id', 'ai_provider_id', 'meter_type', 'model', 'source']

/** Selection of usage events. */
export type UsageSelection = {
  /** Null for every project. */
  project: string | null
  from: Date | null
  to: Date | null
  /** Conditions on `t`, by filter. */
  filters: Partial<Record<string, Fragment>>
  /** Restriction of rows by policies, or null. */
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
  unpriced_input_tokens: z.int(),
  unpriced_cached_tokens: z.int(),
  unpriced_cache_write_tokens: z.int(),
  unpriced_output_tokens: z.int(),
  others: z.array(
    z.object({
      component: z.string(),
      unit: z.string(),
      quantity: z.number(),
      cost_usd: cost,
      unpriced_quantity: z.number(),
    }),
  ),
})
export type Sums = z.output<typeof Sums>

const summedColumns = [
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
  'unpriced_quantity',
  'unpriced_input_tokens',
  'unpriced_cached_tokens',
  'unpriced_cache_write_tokens',
  'unpriced_output_tokens',
]

/** Returns `sum(alias.x) as x` for each summed column. */
const sumsOf = (alias: string): Fragment =>
  sql.fragment`${sql.join(
    summedColumns.map(name => sql.fragment`sum(${sql.identifier([alias, name])}) as ${sql.identifier([name])}`),
    sql.fragment`, `,
  )}`

type Span = { from: Date | null; to: Date | null }

/** Limits a time so that its next hour has a four-digit year, as the timestamp syntax requires. */
const clampTime = (time: Date | null): Date | null => time && new Date(Math.min(time.getTime(), MAX_TIME_MS))
const MAX_TIME_MS = Date.UTC(9999, 11, 31)

/**
 * Splits a span into its whole hours and the edges before and after them. Bounds of spans and edges are inclusive, in
 * milliseconds; `hours` excludes its `to`.
 */
function splitSpan(span: Span): { hours: Span | null; edges: Span[] } {
  const { from, to } = { from: clampTime(span.from), to: clampTime(span.to) }
  const first = from && new Date(Math.ceil(from.getTime() / HOUR_MS) * HOUR_MS)
  const last = to && new Date(Math.floor((to.getTime() + 1) / HOUR_MS) * HOUR_MS)
  if (first && last && first >= last) return { hours: null, edges: [{ from, to }] }
  const edges: Span[] = []
  if (from && first && from < first) edges.push({ from, to: new Date(first.getTime() - 1) })
  if (to && last && last <= to) edges.push({ from: last, to })
  return { hours: { from: first, to: last }, edges }
}

/** Returns the condition for the events of a selection. */
const eventCondition = (selection: UsageSelection): Fragment =>
  allOf([
    projectCondition(selection),
    timeRangeCondition(sql.fragment`t.created_at`, selection),
    ...Object.values(selection.filters),
    selection.visible,
  ])

function fromEvents(selection: UsageSelection, span: Span, group: GroupBy | null): Fragment {
  const turns = group === 'agent_version' ? turnVersions.only() : null
  return sql.fragment`
    select t.project_id, t.created_at as at, t.meter_type, t.model, t.served_model, t.service_tier, t.ai_provider_id, t.agent_id, t.source, t.publisher_project_id,
      t.orchestration_run_id, t.actor_id, t.session_id, t.trigger_id, t.action_id,
      ${turns ? sql.fragment`${turns.version}::text` : sql.fragment`null::text`} as agent_version, p.*
    from usage_events t ${turns?.join ?? sql.fragment``} cross join lateral usage_parts(t.components, t.cost_usd, t.event_count) p
    where ${eventCondition({ ...selection, ...span })}`
}

/**
 * Returns a select of the roll-ups of a selection, summed by the given columns. Summing first costs a third of
 * computing the key or interval of each row.
 */
function fromRollups(selection: UsageSelection, { from, to }: Span, columns: readonly string[]): Fragment {
  const identifiers = [...columns.filter(name => name !== 'at'), 'component', 'unit'].map(name =>
    sql.identifier(['t', name]),
  )
  const groupColumns = columns.includes('at') ? [sql.fragment`t.hour`, ...identifiers] : identifiers
  return sql.fragment`
    select ${columns.includes('at') ? sql.fragment`t.hour as at, ` : sql.fragment``}${sql.join(identifiers, sql.fragment`, `)}, ${sumsOf('t')}
    from usage_rollups t
    where ${allOf([
      projectCondition(selection),
      from && sql.fragment`t.hour >= ${from.toISOString()}::timestamptz`,
      to && sql.fragment`t.hour < ${to.toISOString()}::timestamptz`,
      ...Object.values(selection.filters),
    ])}
    group by ${sql.join(groupColumns, sql.fragment`, `)}`
}

const projectCondition = ({ project }: UsageSelection): Fragment | null =>
  project === null ? null : sql.fragment`t.project_id = ${project}`

/**
 * Returns a select of usage summed by key, AI provider and interval. Whole hours come from roll-ups (primary key of
 * usage_rollups) if these contain the columns of the dimension and the filters; everything else comes from events
 * (usage_events_project or the index of a filter).
 */
function usageFacts(selection: UsageSelection, group: GroupBy | null, interval: Interval | null): Fragment {
  const { key, columns, rolled } = group === null ? NO_DIMENSION : DIMENSIONS[group]
  const isRolledUp =
    rolled && selection.visible === null && Object.keys(selection.filters).every(name => ROLLED_FILTERS.includes(name))
  const { hours, edges } = isRolledUp ? splitSpan(selection) : { hours: null, edges: [selection] }
  const read = [...new Set([...columns, ...(interval ? ['at'] : [])])]
  const parts = [
    ...(hours ? [fromRollups(selection, hours, read)] : []),
    ...edges.map(edge => fromEvents(selection, edge, group)),
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

const NO_DIMENSION: Dimension = { key: sql.fragment`null::text`, columns: [], rolled: true }

/** Totals over rows that are already summed by component. */
const figures = sql.fragment`
  coalesce(sum(s.events), 0)::int8 as events, sum(s.cost_usd) filter (where s.component = '') as cost_usd,
  coalesce(sum(s.input_tokens), 0)::int8 as input_tokens, sum(s.input_cost) as input_cost,
  coalesce(sum(s.cached_tokens), 0)::int8 as cached_tokens, sum(s.cached_cost) as cached_cost,
  coalesce(sum(s.cache_write_tokens), 0)::int8 as cache_write_tokens, sum(s.cache_write_cost) as cache_write_cost,
  coalesce(sum(s.output_tokens), 0)::int8 as output_tokens, sum(s.output_cost) as output_cost,
  coalesce(sum(s.reasoning_tokens), 0)::int8 as reasoning_tokens,
  coalesce(sum(s.unpriced_input_tokens), 0)::int8 as unpriced_input_tokens,
  coalesce(sum(s.unpriced_cached_tokens), 0)::int8 as unpriced_cached_tokens,
  coalesce(sum(s.unpriced_cache_write_tokens), 0)::int8 as unpriced_cache_write_tokens,
  coalesce(sum(s.unpriced_output_tokens), 0)::int8 as unpriced_output_tokens,
  coalesce(jsonb_agg(jsonb_build_object('component', s.component, 'unit', s.unit, 'quantity', s.quantity::float8,
    'cost_usd', s.cost_usd::float8, 'unpriced_quantity', s.unpriced_quantity::float8)) filter (where s.component <> ''), '[]') as others`

const UsageGroup = Sums.extend({
  whole: z.boolean(),
  key: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
  buckets: z.int(),
})
export type UsageGroup = z.output<typeof UsageGroup>

const factsText = sql.type(z.strictObject({ facts: z.string() }))

/** Returns the usage of a selection by project, AI provider and component, as JSON text for `factsOfCells`. */
export const readFacts = (db: Queryable, selection: UsageSelection): Promise<string> =>
  db.oneFirst(factsText`
    select coalesce(json_agg(s), '[]')::text as facts from (
      select key, ai_provider_id, component, unit, ${sumsOf('f')} from (${usageFacts(selection, 'project', null)}) f
      group by key, ai_provider_id, component, unit) s`)

/** Returns a select of the usage that several cells have read. */
export const factsOfCells = (texts: readonly string[]): Fragment => sql.fragment`
  select f.* from unnest(${sql.array([...texts], 'text')}) t (facts) cross join lateral json_to_recordset(t.facts::json) as f (
    key text, ai_provider_id text, component text, unit text, ${sql.join(
      summedColumns.map(name => sql.fragment`${sql.identifier([name])} numeric`),
      sql.fragment`, `,
    )})`

/**
 * Returns a page of groups by descending cost, the totals over all groups and the number of groups, in one statement.
 * @param facts the usage of the selection, default as the database has it
 */
export async function aggregateEvents(
  db: Queryable,
  selection: UsageSelection,
  group: GroupBy | null,
  page: { limit: number; offset: number },
  facts: Fragment = usageFacts(selection, group, null),
): Promise<{ totals: Sums; groups: readonly UsageGroup[]; total: number }> {
  const rows = await db.any(sql.type(UsageGroup)`
    with facts as (${facts}),
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
  const whole = rows.find(row => row.whole) as UsageGroup
  return { totals: whole, groups: rows.filter(row => !row.whole), total: group === null ? 0 : whole.buckets }
}

/** Columns of `figures`, in order. */
const columns = sql.fragment`${sql.join(
  Object.keys(Sums.shape).map(name => sql.identifier([name])),
  sql.fragment`, `,
)}`

const UsagePoint = Sums.extend({
  start: z.string(),
  whole: z.boolean(),
  key: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
})
export type UsagePoint = z.output<typeof UsagePoint>

/**
 * Returns the sums of each UTC interval with usage and of its groups, by time; at most `limit` rows. A limit of one
 * more than allowed reveals an excess.
 */
export const usageSeries = (
  db: Queryable,
  selection: UsageSelection,
  interval: Interval,
  group: GroupBy | null,
  limit: number,
): Promise<readonly UsagePoint[]> =>
  db.any(sql.type(UsagePoint)`
    with facts as (${usageFacts(selection, group, interval)}),
      sums as (
        select start, ${group === null ? sql.fragment`null as key, null as ai_provider_id, true` : sql.fragment`key, ai_provider_id, grouping(key) = 1`} as whole,
          component, unit, ${sumsOf('f')}
        from facts f
        group by grouping sets (${group === null ? sql.fragment`` : sql.fragment`(start, key, ai_provider_id, component, unit), `}(start, component, unit)))
    select s.start, s.whole, s.key, s.ai_provider_id, ${figures} from sums s
    group by s.start, s.whole, s.key, s.ai_provider_id
    order by s.start, s.whole desc, cost_usd desc nulls last, s.key, s.ai_provider_id limit ${limit}`)

/** Returns the ratings of the turns of a selection within a project by agent version. Index usage_events_generation. */
export const ratingsByVersion = async (
  db: Queryable,
  selection: UsageSelection & { project: string },
): Promise<readonly TurnRatings[]> =>
  (await turnRatings.only()?.(
    db,
    selection.project,
    sql.fragment`select t.generation_id from usage_events t where ${eventCondition(selection)}`,
  )) ?? []

export const DistinctCounts = z
  .object({
    generations: z.int().describe('Number of generations'),
    traces: z.int().describe('Number of traces'),
    orchestration_runs: z.int().describe('Number of orchestration runs'),
    agents: z.int().describe('Number of agents'),
    actors: z.int().describe('Number of end users'),
    sessions: z.int().describe('Number of sessions'),
    ai_providers: z.int().describe('Number of AI providers'),
  })
  .describe('Numbers of distinct IDs in the events; absent IDs are not counted')

/** Counts distinct ids. Reads every event of the selection, as roll-ups do not contain the ids. */
export const countDistinct = (db: Queryable, selection: UsageSelection): Promise<z.output<typeof DistinctCounts>> =>
  db.one(sql.type(DistinctCounts)`
    select count(distinct t.generation_id) as generations, count(distinct t.trace_id) as traces,
      count(distinct t.orchestration_run_id) as orchestration_runs, count(distinct t.agent_id) as agents,
      count(distinct t.actor_id) as actors, count(distinct t.session_id) as sessions, count(distinct t.ai_provider_id) as ai_providers
    from usage_events t
    where ${eventCondition(selection)}`)

/**
 * Lists up to `limit` events of a selection after one (null: from the first), oldest first (index
 * usage_events_project).
 */
export const listUsageEventsAfter = (
  db: Queryable,
  selection: UsageSelection,
  after: UsageRow | null,
  limit: number,
): Promise<readonly UsageRow[]> =>
  db.any(usageKind.sql`
    select ${usageKind.columns} from usage_events t
    where ${eventCondition(selection)}
      ${after === null ? sql.fragment`` : sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})`}
    order by t.created_at, t.id limit ${limit}`)

/** Lists all events of one generation or run, oldest first (indexes usage_events_generation, usage_events_run). */
export const listUsageEvents = (db: Queryable, selection: UsageSelection): Promise<readonly UsageRow[]> =>
  db.any(usageKind.sql`
    select ${usageKind.columns} from usage_events t where ${eventCondition(selection)} order by t.created_at, t.id`)

/** Finds the project of the events of a generation or run (indexes usage_events_generation, usage_events_run). */
export const findProjectOfEvents = (
  db: Queryable,
  column: 'generation_id' | 'orchestration_run_id',
  id: string,
): Promise<string | null> =>
  db.maybeOneFirst(sql.type(z.object({ project_id: z.string() }))`
    select t.project_id from usage_events t where ${sql.identifier(['t', column])} = ${id} limit 1`)

export const RunTotals = z.object({
  own: z.boolean(),
  events: z.int(),
  cost_usd: z.number().nullable(),
  uncached: z.number(),
  cached: z.number(),
  written: z.number(),
  output: z.number(),
  reasoning: z.number(),
})
const runTotalsRow = sql.type(RunTotals)
export type RunTotals = z.output<typeof RunTotals>

const runSums = sql.fragment`sum(u.events)::int8 as events, sum(u.cost_usd) as cost_usd, sum(u.input_tokens) as uncached,
      sum(u.cached_tokens) as cached, sum(u.cache_write_tokens) as written, sum(u.output_tokens) as output,
      sum(u.reasoning_tokens) as reasoning`

/**
 * Returns the totals of runs, with the totals of `runId` as a separate row `own` (function run_usage: a row for each run,
 * and its events that are not folded).
 * @param runs query of the IDs of the runs, each once
 */
export const totalsOfRuns = (db: Queryable, runId: string, runs: Fragment): Promise<readonly RunTotals[]> =>
  db.any(runTotalsRow`${runTotals(runId, runs)}`)

/** Returns the query of `totalsOfRuns`. */
export const runTotals = (runId: string, runs: Fragment): Fragment => sql.fragment`
    select run.id = ${runId} as own, ${runSums} from (${runs}) run (id) cross join lateral run_usage(run.id) u group by 1`

const treeTotalsRow = sql.type(RunTotals.extend({ root: z.string() }))

/**
 * Returns the totals of trees of runs, with the totals of their roots as separate rows `own` (function run_usage).
 * @param trees query of the pairs of `root` and `id` of a run
 */
export const totalsOfTrees = (db: Queryable, trees: Fragment): Promise<readonly (RunTotals & { root: string })[]> =>
  db.any(treeTotalsRow`
    select tree.root, tree.id = tree.root as own, ${runSums}
    from (${trees}) tree cross join lateral run_usage(tree.id) u group by 1, 2`)
