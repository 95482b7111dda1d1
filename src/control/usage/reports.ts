import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { type Filters, filterSchema } from '../../core/api/filters.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import { pageOf, parsePage, parseTime } from '../../core/api/lists.ts'
import { ndjsonStream } from '../../core/api/ndjson.ts'
import { type Context, type Operation, operation } from '../../core/api/operation.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { isAdmin } from '../../core/iam/caller.ts'
import { usageFilters, usageQuery } from './filters.ts'
import { METER_TYPES, RatedComponent, UsageEvent, type UsageRow, usageKind } from './model.ts'
import {
  aggregateEvents,
  countDistinct,
  DIMENSIONS,
  DistinctCounts,
  eventsOf,
  type GroupBy,
  INTERVALS,
  type Interval,
  type Point,
  projectOfEvents,
  type Sums,
  type UsageSelection,
  usageEventsAfter,
  usageSeries,
} from './report-store.ts'
import { UsageTotals } from './totals.ts'

const tag = 'Usage'

/** Figures of a report: what UsageTotals says, how many events, and what of each component. */
const Figures = UsageTotals.extend({
  event_count: z.int(),
  components: z.array(
    z.object({
      component: z.string(),
      unit: z.string(),
      quantity: z.number(),
      cost_usd: z.number().nullable().describe('Of what is priced; null when nothing is'),
    }),
  ),
})

/** The components of tokens, by the columns that they are added up in. */
const TOKENS = [
  ['input_tokens', 'input_cost'],
  ['cached_tokens', 'cached_cost'],
  ['cache_write_tokens', 'cache_write_cost'],
  ['output_tokens', 'output_cost'],
  ['reasoning_tokens', null],
] as const

/** What sums say as UsageTotals. */
const totalsOf = (sums: Sums): z.output<typeof UsageTotals> => ({
  cost_usd: sums.cost_usd,
  input_tokens: sums.input_tokens + sums.cached_tokens + sums.cache_write_tokens,
  uncached_input_tokens: sums.input_tokens,
  output_tokens: sums.output_tokens,
  cached_tokens: sums.cached_tokens,
  cache_write_tokens: sums.cache_write_tokens,
  reasoning_tokens: sums.reasoning_tokens,
})

const byName = (a: { component: string; unit: string }, b: { component: string; unit: string }): number =>
  a.component < b.component || (a.component === b.component && a.unit < b.unit) ? -1 : 1

function figuresOf(sums: Sums): z.output<typeof Figures> {
  const tokens = TOKENS.filter(([name]) => sums[name] > 0).map(([component, cost]) => ({
    component,
    unit: 'token',
    quantity: sums[component],
    cost_usd: cost === null ? null : sums[cost],
  }))
  return { ...totalsOf(sums), event_count: sums.events, components: [...tokens, ...sums.others].sort(byName) }
}

const project = z
  .string()
  .optional()
  .describe('Project whose usage is read; a credential that is bound to a project needs none')

const filters = filterSchema(usageFilters).shape

const groupBy = z
  .enum(Object.keys(DIMENSIONS) as [GroupBy, ...GroupBy[]])
  .describe('What the groups have in common; a day is one of UTC')

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be one ISO 8601 time')
  .transform(value => parseTime(value) as Date)

/** The conditions of the filters that a query uses, by their names. */
const conditionsOf = (query: Record<string, unknown>): UsageSelection['filters'] =>
  Object.fromEntries(
    Object.entries(usageFilters as Filters).flatMap(([name, { where }]) => {
      const condition = query[name] === undefined ? null : where(query[name] as never)
      return condition ? [[name, condition]] : []
    }),
  )

/** What the caller may see of it; raises VALIDATION_FAILED without a project, save for what compares projects. */
function selectionOf(
  { caller, project, query, visible }: Pick<Context, 'caller' | 'project' | 'query' | 'visible'>,
  { from, to, across = false }: { from: Date | null; to: Date | null; across?: boolean },
): UsageSelection {
  if (project === null && !(across && isAdmin(caller)))
    raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required with a credential that is bound to no project',
    })
  const seen = visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` })
  return { project, from, to, filters: conditionsOf(query), visible: seen.all ? null : seen.rows }
}

const Group = Figures.extend({
  key: z.string().nullable().describe('Null for usage that the dimension does not apply to'),
  ai_provider_id: z.string().nullable().describe('Of groups by model: the provider that served it'),
})

const Aggregate = z
  .object({
    project_id: z.string().nullable(),
    from: z.string().nullable(),
    to: z.string().nullable(),
    group_by: groupBy.nullable(),
    filters: z
      .record(z.string(), z.union([z.string(), z.array(z.string())]).nullable())
      .describe('Every filter; null where it is not set'),
    totals: Figures.extend({ distinct: DistinctCounts.optional() }).describe(
      'Of all that is selected, never of a page',
    ),
    groups: pageOf(Group).describe('The same by group, a page of them'),
  })
  .meta({ id: 'UsageAggregate' })

/** Every filter as it was given: meters as one or several. */
const echoed = (query: Record<string, unknown>): Record<string, never> =>
  Object.fromEntries(
    Object.keys(usageFilters).map(name => {
      const value = query[name] ?? null
      return [name, Array.isArray(value) && value.length === 1 ? value[0] : value]
    }),
  ) as Record<string, never>

/** Checked with the others of the page. */
const bound = z.string().optional()
const PAGE = { default: 50, max: 100 }

const aggregateUsage = operation({
  id: 'aggregateUsage',
  method: 'get',
  path: '/usage/aggregate',
  summary: 'Add up usage and its cost, as a whole and by groups',
  description:
    'Groups are ordered by cost, the dearest first; what a dimension does not apply to is in the group `null`, so that groups add up to the totals. An admin compares projects by `group_by=project` without `project_id`.',
  tag,
  action: 'usage:GetAggregate',
  about: usageKind,
  query: usageQuery({
    project_id: project,
    group_by: groupBy.optional(),
    ...filters,
    include: z
      .enum(['distinct'])
      .optional()
      .describe('`distinct`: also count how many different sessions, actors and so on there were'),
    from: bound.describe('Usage at this time or later'),
    to: bound.describe('Usage at this time or earlier'),
    limit: bound.describe('Groups of a page; a larger value than 100 is taken as 100'),
    offset: bound.describe('Groups before the page'),
  }),
  answers: { 200: Aggregate },
  async run(context) {
    const { db, query } = context
    const { group_by = null, include } = query
    const page = parsePage(query, PAGE)
    const selection = selectionOf(context, { ...page, across: group_by === 'project' })
    const { totals, groups, total } = await aggregateEvents(db, selection, group_by, page)
    return {
      project_id: selection.project,
      from: page.from?.toISOString() ?? null,
      to: page.to?.toISOString() ?? null,
      group_by,
      filters: echoed(query),
      totals: { ...figuresOf(totals), ...(include ? { distinct: await countDistinct(db, selection) } : {}) },
      groups: {
        data: groups.map(group => ({ key: group.key, ai_provider_id: group.ai_provider_id, ...figuresOf(group) })),
        total,
        limit: page.limit,
        offset: page.offset,
      },
    }
  },
})

const MAX_POINTS = 1000
const MAX_GROUPS = 10_000

const startOf: Record<Interval, (time: Date) => Date> = {
  hour: time => new Date(Math.floor(time.getTime() / 3_600_000) * 3_600_000),
  day: time => new Date(Date.UTC(time.getUTCFullYear(), time.getUTCMonth(), time.getUTCDate())),
  month: time => new Date(Date.UTC(time.getUTCFullYear(), time.getUTCMonth(), 1)),
}

const nextOf: Record<Interval, (start: Date) => Date> = {
  hour: start => new Date(start.getTime() + 3_600_000),
  day: start => new Date(start.getTime() + 86_400_000),
  month: start => new Date(Date.UTC(start.getUTCFullYear(), start.getUTCMonth() + 1, 1)),
}

/** The starts of the intervals between two times. Raises VALIDATION_FAILED when they are too many. */
function startsOf(interval: Interval, from: Date, to: Date): string[] {
  const starts: string[] = []
  for (let start = startOf[interval](from); start <= to; start = nextOf[interval](start)) {
    if (starts.length === MAX_POINTS)
      raiseInvalid({ code: 'TOO_BIG', path: 'interval', message: `must give at most ${MAX_POINTS} points` })
    starts.push(start.toISOString())
  }
  return starts
}

const Timeseries = z
  .object({
    interval: z.enum(INTERVALS),
    points: z
      .array(
        z.object({
          start: z.string().describe('When the interval begins'),
          groups: z.array(Group).describe('Without group_by empty'),
          totals: Figures,
        }),
      )
      .describe('One entry per interval'),
  })
  .meta({ id: 'UsageTimeseries' })

const NOTHING: Sums = {
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
  others: [],
}

const timeseries = operation({
  id: 'getUsageTimeseries',
  method: 'get',
  path: '/usage/timeseries',
  summary: 'Add up usage and its cost by hour, day or month',
  description: `At most ${MAX_POINTS} points, those without usage included, and ${MAX_GROUPS} groups in all of them.`,
  tag,
  action: 'usage:GetAggregate',
  about: usageKind,
  query: usageQuery({
    project_id: project,
    interval: z.enum(INTERVALS).describe('How long each point is, in UTC'),
    from: time.describe('Usage at this time or later'),
    to: time.describe('Usage at this time or earlier'),
    group_by: groupBy.optional(),
    ...filters,
  }),
  answers: { 200: Timeseries },
  async run(context) {
    const { interval, from, to, group_by = null } = context.query
    const starts = startsOf(interval, from, to)
    const selection = selectionOf(context, { from, to })
    const most = MAX_POINTS + MAX_GROUPS
    const points = await usageSeries(context.db, selection, interval, group_by, most + 1)
    if (points.length > most)
      raiseInvalid({
        code: 'TOO_BIG',
        path: 'group_by',
        message: `must give at most ${MAX_GROUPS} groups: narrow the bounds or the filters`,
      })
    const byStart = Map.groupBy(points, ({ start }) => start)
    return { interval, points: starts.map(start => pointOf(start, byStart.get(start) ?? [])) }
  },
})

function pointOf(start: string, points: readonly Point[]) {
  const groups = points.filter(({ whole }) => !whole)
  return {
    start,
    groups: groups.map(group => ({ key: group.key, ai_provider_id: group.ai_provider_id, ...figuresOf(group) })),
    totals: figuresOf(points.find(({ whole }) => whole) ?? NOTHING),
  }
}

const EXPORT_PAGE = 500

const exportEvents = operation({
  id: 'exportUsageEvents',
  method: 'get',
  path: '/usage/export',
  summary: 'Stream the usage events of a project, oldest first',
  description:
    'One JSON object a line. Events written after the export began are not part of it. An answer that ends without a newline was broken off.',
  tag,
  action: 'usage:ExportUsageEvents',
  lists: usageKind,
  paged: false,
  query: usageQuery({
    project_id: project,
    ...filters,
    from: time.optional().describe('Events created at this time or later'),
    to: time.optional().describe('Events created at this time or earlier'),
  }),
  answers: { 200: UsageEvent },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const { query, services } = context
    const started = new Date()
    const to = query.to && query.to < started ? query.to : started
    const selection = selectionOf(context, { from: query.from ?? null, to })
    return ndjsonStream<UsageRow>(
      context,
      {
        read: (after, limit) => usageEventsAfter(services.pool, selection, after, limit),
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
          meter_type: z.string().describe('Kind of use'),
          provider: z.string(),
          model: z.string(),
          node_id: z.string().nullable(),
          cost_usd: z.number().nullable(),
          components: z.array(RatedComponent),
        }),
      )
      .describe('One line per metered use'),
    by_meter_type: z
      .array(z.object({ meter_type: z.string().describe('Kind of use'), cost_usd: z.number().nullable() }))
      .describe('Sums by kind of use'),
    totals: UsageTotals,
  })
  .meta({ id: 'UsageReceipt' })

/** What a receipt can be of: the kind, what is missing otherwise, and the column of events. */
const BILLED = {
  generation_id: { kind: 'generation', missing: 'GENERATION_NOT_FOUND' },
  orchestration_run_id: { kind: 'orchestration_run', missing: 'ORCHESTRATION_RUN_NOT_FOUND' },
} as const

/** The project of what a receipt is asked for; of what was deleted, that of its events. Null when there never was any. */
async function projectOf(db: Queryable, column: keyof typeof BILLED, id: string): Promise<string | null> {
  const kind = kinds.find(BILLED[column].kind)
  const row = kind && isIdOf(kind, id) ? await kind.find(db, id) : null
  return row?.project_id ?? (await projectOfEvents(db, column, id))
}

const receipt = operation({
  id: 'readUsageReceipt',
  method: 'get',
  path: '/usage/receipt',
  summary: 'Read what a generation or an orchestration run was billed, line by line',
  description:
    'Exactly one of `generation_id` and `orchestration_run_id`. Numbers are those of when the usage was written. A run holds its own nodes; runs that it started have receipts of their own.',
  tag,
  action: 'usage:GetReceipt',
  about: usageKind,
  query: usageQuery({
    project_id: project,
    generation_id: z.string().min(1).max(255).optional().describe('Generation to bill'),
    orchestration_run_id: z.string().min(1).max(255).optional().describe('Orchestration run to bill'),
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
        message: 'exactly one of generation_id and orchestration_run_id is required',
      })
    const column = generation_id === undefined ? 'orchestration_run_id' : 'generation_id'
    const id = (generation_id ?? orchestration_run_id) as string
    const project_id = await projectOf(db, column, id)
    const hidden = context.project !== null && project_id !== context.project
    if (project_id === null || hidden || !allowed('usage:GetReceipt', { kind: usageKind, project_id }))
      return raise(BILLED[column].missing, { meta: { id } })
    const selection = {
      ...selectionOf({ ...context, project: project_id, query: {} }, { from: null, to: null }),
      filters: conditionsOf({ [column]: id }),
    }
    const [{ totals, groups }, events] = [
      await aggregateEvents(db, selection, 'meter_type', { limit: METER_TYPES.length, offset: 0 }),
      await eventsOf(db, selection),
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
      totals: totalsOf(totals),
    }
  },
})

/** Reading usage as a whole. */
export const reportOperations: Operation[] = [aggregateUsage, timeseries, exportEvents, receipt]
