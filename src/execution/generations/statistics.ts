import { z } from 'zod'
import { intervalStarts, MAX_POINTS, timeQuery } from '#control/usage/intervals.ts'
import { timeRangeCondition } from '#core/api/lists.ts'
import { operation } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { allOf, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { generationKind } from './model.ts'

const INTERVALS = ['hour', 'day'] as const

/** Most turns of one answer: half a million are read and sorted in about 3 s. */
const MAX_TURNS = 500_000

const milliseconds = z.int().nullable().describe('Milliseconds. Null without such a turn.')

const figures = {
  turns: z.int().describe('Number of turns that were created'),
  errors: z.int().describe('Number of these that failed, including cancelled ones'),
  latency_ms: z
    .object({ p50: milliseconds, p95: milliseconds })
    .describe('Time from the creation of a turn to its end, including waits'),
  first_text_ms: z
    .object({ p50: milliseconds, p95: milliseconds })
    .describe('Time from the creation of a streamed turn to its first text'),
  input_tokens: z.int(),
  output_tokens: z.int(),
  cost_usd: z.number().nullable().describe('Cost of priced usage. Null if nothing is priced.'),
}
const Figures = z.object(figures)
type Figures = z.output<typeof Figures>

const Statistics = z
  .object({
    interval: z.enum(INTERVALS),
    points: z
      .array(z.object({ start: z.string().describe('Start of the interval'), ...figures }))
      .describe('One point per interval'),
    totals: Figures.describe('Figures of all turns of the range'),
  })
  .meta({ id: 'GenerationStatistics' })

const StatisticsRow = z.object({
  /** Null for all intervals together. */
  start: z.string().nullable(),
  turns: z.int(),
  errors: z.int(),
  latency: z.array(z.number().nullable()).nullable(),
  first_text: z.array(z.number().nullable()).nullable(),
  input_tokens: z.int(),
  output_tokens: z.int(),
  cost_usd: z.number().nullable(),
})
type StatisticsRow = z.output<typeof StatisticsRow>

const percentiles = (column: string): Fragment =>
  sql.fragment`percentile_cont(array[0.5, 0.95]) within group (order by ${sql.identifier([column])})`

const msSince = (time: Fragment): Fragment => sql.fragment`extract(epoch from ${time} - t.created_at)::float8 * 1000`

/**
 * Returns the figures of turns by interval, and of all. Reads at most one turn more than allowed, which reveals an excess
 * (indexes generations_project, generations_agent). The first text of a turn that failed before it is absent.
 */
const readStatistics = (
  db: Queryable,
  turns: Fragment,
  interval: (typeof INTERVALS)[number],
): Promise<readonly StatisticsRow[]> =>
  db.any(sql.type(StatisticsRow)`
    with turns as materialized (
      select date_trunc(${interval}, t.created_at, 'UTC') as start, t.status = 'failed' as failed,
        ${msSince(sql.fragment`t.completed_at`)} as latency, ${msSince(sql.fragment`t.first_text_at`)} as first_text,
        (t.usage ->> 'input_tokens')::int8 as input_tokens, (t.usage ->> 'output_tokens')::int8 as output_tokens,
        (t.usage ->> 'cost_usd')::numeric as cost_usd
      from generations t where ${turns} limit ${MAX_TURNS + 1})
    select start, count(*) as turns,
      count(*) filter (where failed) as errors, ${percentiles('latency')} as latency, ${percentiles('first_text')} as first_text,
      coalesce(sum(input_tokens), 0)::int8 as input_tokens, coalesce(sum(output_tokens), 0)::int8 as output_tokens,
      sum(cost_usd) as cost_usd
    from turns group by grouping sets ((start), ())`)

const NO_TURNS: Omit<StatisticsRow, 'start'> = {
  turns: 0,
  errors: 0,
  latency: null,
  first_text: null,
  input_tokens: 0,
  output_tokens: 0,
  cost_usd: null,
}

function figuresOf({ turns, errors, latency, first_text, ...usage }: typeof NO_TURNS): Figures {
  const rounded = (values: StatisticsRow['latency']) => {
    const [p50, p95] = (values ?? [null, null]).map(value => value && Math.round(value))
    return { p50, p95 }
  }
  const { input_tokens, output_tokens, cost_usd } = usage
  return {
    turns,
    errors,
    latency_ms: rounded(latency),
    first_text_ms: rounded(first_text),
    input_tokens,
    output_tokens,
    cost_usd,
  }
}

export const getGenerationStatistics = operation({
  id: 'getGenerationStatistics',
  method: 'get',
  path: '/generations/statistics',
  summary: 'Get statistics of generations',
  description: `Counts the turns that the caller may list, by the hour or the day of their creation, in UTC: at most ${MAX_POINTS} points, including points without turns, of at most ${MAX_TURNS} turns. Percentiles of latency are of turns that have ended.`,
  tag: 'Generations',
  action: 'generations:ListGenerations',
  about: generationKind,
  replica: true,
  query: z.object({
    project_id: z
      .string()
      .min(1)
      .max(255)
      .optional()
      .describe('ID of the project; required for credentials that are not bound to a project'),
    agent_id: z.string().min(1).max(255).optional().describe('ID of the agent'),
    interval: z.enum(INTERVALS).describe('Length of an interval, in UTC'),
    from: timeQuery.describe('Turns created at this time or later').meta({ example: '2026-03-01T00:00:00.000Z' }),
    to: timeQuery.describe('Turns created at this time or earlier').meta({ example: '2026-03-02T00:00:00.000Z' }),
  }),
  answers: { 200: Statistics },
  async run({ db, query, project, visible }) {
    const { agent_id, interval, from, to } = query
    if (project === null)
      raiseInvalid({
        code: 'REQUIRED',
        path: 'project_id',
        message: 'is required for credentials that are not bound to a project',
      })
    if (to < from) raiseInvalid({ code: 'INVALID_VALUE', path: 'to', message: 'must not be before from' })
    const starts = intervalStarts(interval, from, to)
    const turns = allOf([
      visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
      agent_id !== undefined && sql.fragment`t.agent_id = ${agent_id}`,
      timeRangeCondition(sql.fragment`t.created_at`, { from, to }),
    ])
    const rows = await readStatistics(db, turns, interval)
    const totals = rows.find(({ start }) => start === null) ?? NO_TURNS
    if (totals.turns > MAX_TURNS)
      raiseInvalid({
        code: 'TOO_BIG',
        path: 'from',
        message: `must begin a range of at most ${MAX_TURNS} turns, narrow the time range`,
      })
    const byStart = new Map(rows.flatMap(row => (row.start === null ? [] : [[row.start, row]])))
    return {
      interval,
      points: starts.map(start => ({ start, ...figuresOf(byStart.get(start) ?? NO_TURNS) })),
      totals: figuresOf(totals),
    }
  },
})
