import { z } from 'zod'
import { namesExpression } from '#core/api/entry-fields.ts'
import { type Filters, filterSchema } from '#core/api/filters.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { pageOf, parsePage } from '#core/api/lists.ts'
import { ndjsonStream } from '#core/api/ndjson.ts'
import { type Context, combined, type Operation, operation } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { isAdmin } from '#core/iam/caller.ts'
import { usageFilters, usageQuery } from './filters.ts'
import { intervalStarts, MAX_POINTS, timeQuery, USAGE_INTERVALS } from './intervals.ts'
import { METER_TYPES, RatedComponent, UsageEvent, type UsageRow, usageKind } from './model.ts'
import {
  aggregateEvents,
  countDistinct,
  DIMENSIONS,
  DistinctCounts,
  factsOfCells,
  findProjectOfEvents,
  type GroupBy,
  listUsageEvents,
  listUsageEventsAfter,
  ratingsByVersion,
  readFacts,
  type Sums,
  type UsagePoint,
  type UsageSelection,
  usageSeries,
} from './report-store.ts'
import { UsageTotals } from './totals.ts'
import { wholeOf } from './usage-draft.ts'

const tag = 'Usage'

const components = z
  .array(
    z.object({
      component: z.string(),
      unit: z.string(),
      quantity: z.number(),
      cost_usd: z.number().nullable().describe('Cost of priced usage. Null if nothing is priced.'),
      unpriced_quantity: z.number().describe('Billable part of the quantity without a price'),
      unpriced_share: z.number().describe('Part of the quantity that is billable and has no price, from 0 to 1'),
    }),
  )
  .describe('Quantity and cost of each component')

/** UsageTotals with the number of events and the totals by component. */
const Figures = UsageTotals.extend({
  event_count: z.int(),
  unpriced_tokens: z.number().describe('Billable tokens without a price'),
  unpriced_share: z
    .number()
    .describe('Part of the input and output tokens that is billable and has no price, from 0 to 1'),
  components,
})

/** Token components with the columns of their costs and of their quantities without a price. */
const TOKEN_COMPONENTS = [
  ['input_tokens', 'input_cost', 'unpriced_input_tokens'],
  ['cached_tokens', 'cached_cost', 'unpriced_cached_tokens'],
  ['cache_write_tokens', 'cache_write_cost', 'unpriced_cache_write_tokens'],
  ['output_tokens', 'output_cost', 'unpriced_output_tokens'],
  // Part of the output, not billable.
  ['reasoning_tokens', null, null],
] as const

/** Returns the totals of sums, which have the parts of tokens as other components. */
function totalsOf(sums: Sums): z.output<typeof UsageTotals> {
  const whole = (name: 'input_tokens' | 'cached_tokens' | 'cache_write_tokens' | 'output_tokens'): number =>
    sums.others.reduce(
      (sum, { component, unit, quantity }) =>
        unit === 'token' && component !== name && wholeOf(component) === name ? sum + quantity : sum,
      sums[name],
    )
  const [uncached, cached, written] = [whole('input_tokens'), whole('cached_tokens'), whole('cache_write_tokens')]
  return {
    cost_usd: sums.cost_usd,
    input_tokens: uncached + cached + written,
    uncached_input_tokens: uncached,
    output_tokens: whole('output_tokens'),
    cached_tokens: cached,
    cache_write_tokens: written,
    reasoning_tokens: sums.reasoning_tokens,
  }
}

const byName = (a: { component: string; unit: string }, b: { component: string; unit: string }): number =>
  a.component < b.component || (a.component === b.component && a.unit < b.unit) ? -1 : 1

const shareOf = (part: number, whole: number): number => (whole > 0 ? part / whole : 0)

function componentsOf(sums: Sums): z.output<typeof components> {
  const tokens = TOKEN_COMPONENTS.filter(([name]) => sums[name] > 0).map(([component, cost, unpriced]) => ({
    component,
    unit: 'token',
    quantity: sums[component],
    cost_usd: cost && sums[cost],
    unpriced_quantity: unpriced ? sums[unpriced] : 0,
  }))
  return [...tokens, ...sums.others]
    .map(part => ({ ...part, unpriced_share: shareOf(part.unpriced_quantity, part.quantity) }))
    .sort(byName)
}

function figuresOf(sums: Sums): z.output<typeof Figures> {
  const totals = totalsOf(sums)
  const components = componentsOf(sums)
  const unpriced_tokens = components.reduce(
    (sum, { unit, unpriced_quantity }) => (unit === 'token' ? sum + unpriced_quantity : sum),
    0,
  )
  return {
    ...totals,
    event_count: sums.events,
    unpriced_tokens,
    unpriced_share: shareOf(unpriced_tokens, totals.input_tokens + totals.output_tokens),
    components,
  }
}

const project = z
  .string()
  .optional()
  .describe('ID of the project; required for credentials that are not bound to a project')

const filters = filterSchema(usageFilters).shape

const groupBy = z
  .enum(Object.keys(DIMENSIONS) as [GroupBy, ...GroupBy[]])
  .describe('Dimension to group by; days are in UTC')

/** Returns the conditions of the filters in a query, by filter. */
const filterConditionsOf = (query: Record<string, unknown>): UsageSelection['filters'] =>
  Object.fromEntries(
    Object.entries(usageFilters as Filters).flatMap(([name, { where }]) => {
      const condition = query[name] === undefined ? null : where(query[name] as never)
      return condition ? [[name, condition]] : []
    }),
  )

/**
 * Returns the selection of usage that matches the query and that the caller may read.
 * @throws VALIDATION_FAILED without a project, unless an admin compares projects (`across`)
 */
function selectionOf(
  { caller, project, query, visible }: Pick<Context, 'caller' | 'project' | 'query' | 'visible'>,
  { from, to, across = false }: { from: Date | null; to: Date | null; across?: boolean },
): UsageSelection {
  if (project === null && !(across && isAdmin(caller)))
    raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required for credentials that are not bound to a project',
    })
  const permitted = visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` })
  return { project, from, to, filters: filterConditionsOf(query), visible: permitted.all ? null : permitted.rows }
}

const Group = Figures.extend({
  key: z.string().nullable().describe('Value of the dimension. Null for usage without it.'),
  ai_provider_id: z.string().nullable().describe('ID of the AI provider, if grouped by model'),
})

const groupName = (kind: string, what: string) =>
  z
    .string()
    .nullable()
    .optional()
    .describe(`${what} of the ${kind}, if grouped by it. Null without permission to get the ${kind}.`)

/** A group of an aggregate. */
const RatedGroup = Group.extend({
  up: z.int().optional().describe('Number of ratings of 1 of the turns, if grouped by agent version'),
  down: z.int().optional().describe('Number of ratings of -1 of the turns, if grouped by agent version'),
  agent_name: groupName('agent', 'Name'),
  actor_name: groupName('actor', 'Name'),
  actor_external_id: groupName('actor', 'External ID'),
})

/** Columns of the records that groups name, by dimension. */
const NAMED_GROUPS: Partial<Record<GroupBy, readonly string[]>> = { agent: ['name'], actor: ['name', 'external_id'] }

const namesRow = sql.type(z.object({ key: z.string(), names: z.record(z.string(), z.string().nullable()) }))

/** Returns the names of the records of groups by key, in one statement; none for other dimensions. Primary key. */
async function namesOfGroups(
  { db, caller, project }: Pick<Context, 'db' | 'caller' | 'project'>,
  dimension: GroupBy | null,
  groups: readonly { key: string | null }[],
): Promise<(key: string | null) => Record<string, string | null>> {
  const columns = dimension && NAMED_GROUPS[dimension]
  const keys = groups.flatMap(({ key }) => (key === null ? [] : [key]))
  if (!columns) return () => ({})
  const names = namesExpression({ caller, project }, dimension, columns, {
    id: sql.fragment`g.key`,
    project: sql.fragment`${project}`,
  })
  const rows =
    keys.length === 0
      ? []
      : await db.any(namesRow`select g.key, ${names} as names from unnest(${sql.array(keys, 'text')}) as g (key)`)
  const byKey = new Map(rows.map(({ key, names }) => [key, names]))
  return key =>
    Object.fromEntries(
      columns.map(column => [`${dimension}_${column}`, byKey.get(key ?? '')?.[`${dimension}_${column}`] ?? null]),
    )
}

const Aggregate = z
  .object({
    project_id: z.string().nullable(),
    from: z.string().nullable(),
    to: z.string().nullable(),
    group_by: groupBy.nullable(),
    filters: z
      .record(z.string(), z.union([z.string(), z.array(z.string())]).nullable())
      .describe('Values of all filters; null if not set'),
    totals: Figures.extend({ distinct: DistinctCounts.optional() }).describe('Totals over the whole selection'),
    groups: pageOf(RatedGroup).describe('Page of totals by group'),
  })
  .meta({ id: 'UsageAggregate' })

/** Returns the values of all filters; a list with one value becomes that value. */
const appliedFilters = (query: Record<string, unknown>): Record<string, never> =>
  Object.fromEntries(
    Object.keys(usageFilters).map(name => {
      const value = query[name] ?? null
      return [name, Array.isArray(value) && value.length === 1 ? value[0] : value]
    }),
  ) as Record<string, never>

/** Validated by parsePage. */
const pageParameter = z.string().optional()
const PAGE = { default: 50, max: 100 }

const AggregateQuery = usageQuery({
  project_id: project,
  group_by: groupBy.optional(),
  ...filters,
  include: z
    .enum(['distinct'])
    .optional()
    .describe(
      '`distinct` – include the numbers of distinct generations, traces, runs, agents, end users, sessions and AI providers',
    ),
  from: pageParameter.describe('Usage at this time or later'),
  to: pageParameter.describe('Usage at this time or earlier'),
  limit: pageParameter.describe(
    'Number of groups per page. Default 50, at most 100; larger values are reduced to 100.',
  ),
  offset: pageParameter.describe('Number of groups to skip'),
})
type AggregateQuery = z.output<typeof AggregateQuery>

const aggregateSelection = (context: Context<AggregateQuery>) => {
  const { group_by = null, include } = context.query
  const page = parsePage(context.query, PAGE)
  return { group_by, include, page, selection: selectionOf(context, { ...page, across: group_by === 'project' }) }
}

/** Adds numbers of distinct IDs of different cells. */
const sumCounts = (counts: readonly z.output<typeof DistinctCounts>[]): z.output<typeof DistinctCounts> =>
  counts.reduce((sum, each) => {
    const names = Object.keys(sum) as (keyof typeof sum)[]
    return Object.fromEntries(names.map(name => [name, sum[name] + each[name]])) as typeof sum
  })

/** Returns the aggregate of usage: of `facts`, default as the database has it. */
async function aggregateOf(
  context: Context<AggregateQuery>,
  { facts, distinct }: { facts?: Fragment; distinct: () => Promise<z.output<typeof DistinctCounts>> },
): Promise<z.output<typeof Aggregate>> {
  const { db, query } = context
  const { group_by, include, page, selection } = aggregateSelection(context)
  const { totals, groups, total } = await aggregateEvents(db, selection, group_by, page, facts)
  const { project } = selection
  const ratings =
    group_by === 'agent_version' && project !== null ? await ratingsByVersion(db, { ...selection, project }) : null
  const namesOf = await namesOfGroups({ ...context, project }, group_by, groups)
  const ratingsOf = (version: string | null) => {
    const { up = 0, down = 0 } = ratings?.find(({ key }) => key === version) ?? {}
    return ratings ? { up, down } : {}
  }
  return {
    project_id: project,
    from: page.from?.toISOString() ?? null,
    to: page.to?.toISOString() ?? null,
    group_by,
    filters: appliedFilters(query),
    totals: { ...figuresOf(totals), ...(include ? { distinct: await distinct() } : {}) },
    groups: {
      data: groups.map(group => ({
        key: group.key,
        ai_provider_id: group.ai_provider_id,
        ...figuresOf(group),
        ...ratingsOf(group.key),
        ...namesOf(group.key),
      })),
      total,
      limit: page.limit,
      offset: page.offset,
    },
  }
}

const aggregateUsage = operation({
  id: 'aggregateUsage',
  method: 'get',
  path: '/usage/aggregate',
  summary: 'Get aggregated usage',
  description:
    'Groups are sorted by cost, descending. Versions of several agents are counted together without `agent_id`. Events without the dimension form the group `null`, so group totals add up to the overall total. Admins can compare projects with `group_by=project` and no `project_id`.',
  tag,
  action: 'usage:GetAggregate',
  about: usageKind,
  replica: true,
  query: AggregateQuery,
  across: combined<AggregateQuery, { facts: string; distinct: z.output<typeof DistinctCounts> | null }>(
    async context => {
      const { selection, include } = aggregateSelection(context)
      return {
        facts: await readFacts(context.db, selection),
        distinct: include ? await countDistinct(context.db, selection) : null,
      }
    },
    (cells, context) =>
      aggregateOf(context, {
        facts: factsOfCells(cells.map(({ facts }) => facts)),
        distinct: async () => sumCounts(cells.flatMap(({ distinct }) => distinct ?? [])),
      }),
  ),
  answers: { 200: Aggregate },
  run: context =>
    aggregateOf(context, { distinct: () => countDistinct(context.db, aggregateSelection(context).selection) }),
})

const MAX_GROUPS = 10_000

const Timeseries = z
  .object({
    interval: z.enum(USAGE_INTERVALS),
    points: z
      .array(
        z.object({
          start: z.string().describe('Start of the interval'),
          groups: z.array(Group).describe('Totals by group; empty without group_by'),
          totals: Figures,
        }),
      )
      .describe('One point per interval'),
  })
  .meta({ id: 'UsageTimeseries' })

const NO_USAGE: Sums = {
  events: 0,
  cost_usd: null,
  input_tokens: 0,
  input_cost: null,
  cached_tokens: 0,
  cached_cost: null,
  cache_write_tokens: 0,
  cache_write_cost: null,
  output_tokens: 0,
  output_cost: null,
  reasoning_tokens: 0,
  unpriced_input_tokens: 0,
  unpriced_cached_tokens: 0,
  unpriced_cache_write_tokens: 0,
  unpriced_output_tokens: 0,
  others: [],
}

const timeseries = operation({
  id: 'getUsageTimeseries',
  method: 'get',
  path: '/usage/timeseries',
  summary: 'Get a usage time series',
  description: `Returns at most ${MAX_POINTS} points, including points without usage, with at most ${MAX_GROUPS} groups in total.`,
  tag,
  action: 'usage:GetAggregate',
  about: usageKind,
  replica: true,
  query: usageQuery({
    project_id: project,
    interval: z.enum(USAGE_INTERVALS).describe('Length of an interval, in UTC'),
    from: timeQuery.describe('Usage at this time or later').meta({ example: '2026-03-01T00:00:00.000Z' }),
    to: timeQuery.describe('Usage at this time or earlier').meta({ example: '2026-03-02T00:00:00.000Z' }),
    group_by: groupBy.optional(),
    ...filters,
  }),
  answers: { 200: Timeseries },
  async run(context) {
    const { interval, from, to, group_by = null } = context.query
    const starts = intervalStarts(interval, from, to)
    const selection = selectionOf(context, { from, to })
    const maxRows = MAX_POINTS + MAX_GROUPS
    const points = await usageSeries(context.db, selection, interval, group_by, maxRows + 1)
    if (points.length > maxRows)
      raiseInvalid({
        code: 'TOO_BIG',
        path: 'group_by',
        message: `must result in at most ${MAX_GROUPS} groups, narrow the time range or the filters`,
      })
    const byStart = Map.groupBy(points, ({ start }) => start)
    return { interval, points: starts.map(start => pointOf(start, byStart.get(start) ?? [])) }
  },
})

function pointOf(start: string, points: readonly UsagePoint[]) {
  const groups = points.filter(({ whole }) => !whole)
  return {
    start,
    groups: groups.map(group => ({ key: group.key, ai_provider_id: group.ai_provider_id, ...figuresOf(group) })),
    totals: figuresOf(points.find(({ whole }) => whole) ?? NO_USAGE),
  }
}

const EXPORT_PAGE = 500

const exportEvents = operation({
  id: 'exportUsageEvents',
  method: 'get',
  path: '/usage/export',
  summary: 'Export usage events',
  description:
    'Oldest first, one JSON object per line. Events written after the export began are excluded. A response that does not end with a newline is incomplete.',
  tag,
  action: 'usage:ExportUsageEvents',
  lists: usageKind,
  paged: false,
  replica: true,
  query: usageQuery({
    project_id: project,
    ...filters,
    from: timeQuery.optional().describe('Events created at this time or later'),
    to: timeQuery.optional().describe('Events created at this time or earlier'),
  }),
  answers: { 200: UsageEvent },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const { db, query } = context
    const started = systemClock.now()
    const to = query.to && query.to < started ? query.to : started
    const selection = selectionOf(context, { from: query.from ?? null, to })
    return ndjsonStream<UsageRow>(
      context,
      {
        read: (after, limit) => listUsageEventsAfter(db, selection, after, limit),
        pageSize: EXPORT_PAGE,
        present: event => usageKind.present(event),
      },
      { 'Content-Disposition': `attachment; filename="usage-${selection.project}.ndjson"` },
    )
  },
})

const Receipt = z
  .object({
    generation_id: z.string().optional(),
    orchestration_run_id: z.string().optional(),
    currency: z.literal('USD').describe('Currency of costs'),
    line_items: z
      .array(
        z.object({
          event_id: z.string(),
          meter_type: z.string().describe('Type of usage'),
          provider: z.string(),
          model: z.string(),
          node_id: z.string().nullable(),
          cost_usd: z.number().nullable(),
          components: z.array(RatedComponent),
        }),
      )
      .describe('One line per usage event'),
    by_meter_type: z
      .array(z.object({ meter_type: z.string().describe('Type of usage'), cost_usd: z.number().nullable() }))
      .describe('Cost by meter type'),
    components,
    totals: UsageTotals,
  })
  .meta({ id: 'UsageReceipt' })

/** Kinds with receipts, by column of usage events. */
const RECEIPT_KINDS = {
  generation_id: { kind: 'generation', missing: 'GENERATION_NOT_FOUND' },
  orchestration_run_id: { kind: 'orchestration_run', missing: 'ORCHESTRATION_RUN_NOT_FOUND' },
} as const

/** Finds the project of a generation or run, also after its deletion if it has usage events. */
async function findReceiptProject(
  db: Queryable,
  column: keyof typeof RECEIPT_KINDS,
  id: string,
): Promise<string | null> {
  const kind = kinds.find(RECEIPT_KINDS[column].kind)
  const row = kind && isIdOf(kind, id) ? await kind.find(db, id) : null
  return row?.project_id ?? (await findProjectOfEvents(db, column, id))
}

const receipt = operation({
  id: 'readUsageReceipt',
  method: 'get',
  path: '/usage/receipt',
  summary: 'Get a usage receipt',
  description:
    'Itemizes the cost of a generation or an orchestration run at the prices applied when the usage was written. Requires exactly one of `generation_id` and `orchestration_run_id`. The receipt of a run excludes runs that it started.',
  tag,
  action: 'usage:GetReceipt',
  about: usageKind,
  query: usageQuery({
    project_id: project,
    generation_id: z.string().min(1).max(255).optional().describe('ID of the generation'),
    orchestration_run_id: z.string().min(1).max(255).optional().describe('ID of the orchestration run'),
  }),
  answers: { 200: Receipt },
  raises: ['GENERATION_NOT_FOUND', 'ORCHESTRATION_RUN_NOT_FOUND'],
  async run(context) {
    const { db, query, allowed } = context
    const { generation_id, orchestration_run_id } = query
    if ((generation_id === undefined) === (orchestration_run_id === undefined))
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: 'generation_id',
        message: 'must be given if orchestration_run_id is not, and cannot be combined with it',
      })
    const column = generation_id === undefined ? 'orchestration_run_id' : 'generation_id'
    const id = (generation_id ?? orchestration_run_id) as string
    const project_id = await findReceiptProject(db, column, id)
    const isOtherProject = context.project !== null && project_id !== context.project
    if (project_id === null || isOtherProject || !allowed('usage:GetReceipt', { kind: usageKind, project_id }))
      return raise(RECEIPT_KINDS[column].missing, { meta: { id } })
    const selection = {
      ...selectionOf({ ...context, project: project_id, query: {} }, { from: null, to: null }),
      filters: filterConditionsOf({ [column]: id }),
    }
    const [{ totals, groups }, events] = [
      await aggregateEvents(db, selection, 'meter_type', { limit: METER_TYPES.length, offset: 0 }),
      await listUsageEvents(db, selection),
    ]
    return {
      [column]: id,
      currency: 'USD' as const,
      line_items: events.map(({ id: event_id, meter_type, provider, model, node_id, cost_usd, components }) => ({
        event_id,
        meter_type,
        provider,
        model,
        node_id,
        cost_usd,
        components,
      })),
      by_meter_type: groups.map(({ key, cost_usd }) => ({ meter_type: key as string, cost_usd })),
      components: componentsOf(totals),
      totals: totalsOf(totals),
    }
  },
})

export const reportOperations: Operation[] = [aggregateUsage, timeseries, exportEvents, receipt]
