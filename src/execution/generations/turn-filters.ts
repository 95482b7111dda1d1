import { z } from 'zod'
import { listAllowed, listAllowedAnywhere, listTargetOf, visibleRows } from '#core/api/access.ts'
import { columnFilter, equalsFilter, type Filters, filterConditions, oneOf } from '#core/api/filters.ts'
import type { Kind } from '#core/api/kind.ts'
import { integerQuery, textFilter, timeRangeCondition } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { allOf, type Fragment, sql, substring } from '#core/db/sql.ts'
import { GENERATION_STATUSES, generationKind } from './model.ts'
import { sizeOfTurns } from './store.ts'
import { traceKind } from './traces/kind.ts'

type Listing = Pick<Context<any>, 'caller' | 'project' | 'page' | 'query' | 'db'>

/** Largest number of turns whose texts a list compares, and the bytes of these texts as they are stored. */
const MAX_SEARCHED_TURNS = 50_000
const MAX_SEARCHED_BYTES = 64 * 1024 * 1024
/** Longest text: a comparison may take time in proportion to it. */
const MAX_TEXT = 200

/** Schema of an amount in US dollars in a query. */
const dollarsQuery = z.preprocess(
  value => (typeof value === 'string' && /^\d{1,12}(\.\d{1,12})?$/.test(value) ? Number(value) : value),
  z.number().min(0),
)

/**
 * Filters of turns `t` by their outcome; `where` of a list adds the condition of `text` by hasTurnText. They read the turns that
 * the time range (generations_project) or the other filters (indexes of session, end user, agent) select: 33,000 of a million in 30 to
 * 120 ms, all in 1 to 2 s. An index on columns that settle with the turn would make every turn write all indexes of its row.
 */
export const turnFilters = {
  status: oneOf('status', GENERATION_STATUSES),
  error_code: columnFilter(
    textFilter.describe('Code of the error with which the turn failed. Erased errors do not match.'),
    code => sql.fragment`t.error ->> 'code' = ${code}`,
  ),
  min_cost_usd: columnFilter(
    dollarsQuery
      .optional()
      .describe(
        'Least cost in US dollars: `usage.cost_usd` of the turn, which does not contain calls of tools and nested turns. Turns that have not settled, and turns without a price, do not match.',
      ),
    // A number in JSON, compared as the number that the list shows.
    cost => sql.fragment`(t.usage ->> 'cost_usd')::double precision >= ${cost}::double precision`,
  ),
  min_latency_ms: columnFilter(
    integerQuery(0)
      .optional()
      .describe(
        'Least number of milliseconds from `started_at` to `completed_at`. Turns that have not settled do not match.',
      ),
    ms => sql.fragment`extract(epoch from t.completed_at - t.started_at) * 1000 >= ${ms}::bigint`,
  ),
  text: columnFilter(
    z
      .string()
      .min(1)
      .max(MAX_TEXT)
      .optional()
      .describe(
        `Part of the answer, or of the messages of the user that it answers, ignoring case. Requires \`generations:GetGeneration\` and \`traces:GetTrace\`; turns that the caller may not read, and content that is erased or not stored, do not match. Compares at most ${MAX_SEARCHED_TURNS.toLocaleString('en')} turns: narrow the time range if there are more.`,
      ),
    () => null,
  ),
} satisfies Filters

const filtersOfTraces: Filters = {
  ...turnFilters,
  actor_id: equalsFilter('actor_id'),
  session_id: equalsFilter('session_id'),
}

/** Filters of a list of traces by their turns, whose condition `where` of the list adds by hasTurn. */
export const traceTurnFilters: Filters = Object.fromEntries(
  Object.entries(filtersOfTraces).map(([name, { schema }]) => [name, columnFilter(schema, () => null)]),
)

/** Raises FORBIDDEN with the name of the filter if the caller may use an action on no row of a list. */
function requireAction({ caller, project }: Listing, field: string, kind: Kind<any>, action: string): void {
  const target = listTargetOf(kind)
  const isPossible =
    project === null ? listAllowedAnywhere(caller, action, target) : listAllowed(caller, action, target, project)
  if (!isPossible) raise('FORBIDDEN', { message: `The filter ${field} requires ${action}`, meta: { action, field } })
}

const rowsOf = ({ caller, project }: Listing, kind: Kind<any>, action: string, id: Fragment): Fragment =>
  visibleRows(caller, { ...listTargetOf(kind), action, project }, { project: sql.fragment`t.project_id`, id }).rows

/** Condition of turns `t` whose answer, or messages of the user after the last reply in their input, contain a text. */
const hasText = (text: string): Fragment => sql.fragment`(
  t.content_redacted_at is null and (
    t.output ->> 'content' ilike ${substring(text)}
    or jsonb_typeof(t.input) = 'array' and exists (
      select from (
        select e.message, e.n, max(e.n) filter (where e.message ->> 'role' = 'assistant') over () as reply
        from jsonb_array_elements(t.input) with ordinality e (message, n)) m
      where m.message ->> 'role' = 'user' and m.n > coalesce(m.reply, 0) and case jsonb_typeof(m.message -> 'content')
        when 'string' then m.message ->> 'content' ilike ${substring(text)}
        else exists (
          select from jsonb_array_elements(m.message -> 'content') p where p ->> 'text' ilike ${substring(text)}) end)))`

/**
 * Returns the condition of a filter by text on turns `t`, null without the filter. Raises FORBIDDEN for a caller who may read no
 * content, and VALIDATION_FAILED if `candidates`, the condition of all other filters, selects too many or too large turns.
 */
async function searchCondition(context: Listing, candidates: Fragment): Promise<Fragment | null> {
  const { text } = context.query
  if (text === undefined) return null
  requireAction(context, 'text', generationKind, 'generations:GetGeneration')
  requireAction(context, 'text', traceKind, 'traces:GetTrace')
  const { turns, bytes } = await sizeOfTurns(context.db, candidates, MAX_SEARCHED_TURNS + 1)
  if (turns > MAX_SEARCHED_TURNS || bytes > MAX_SEARCHED_BYTES)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'text',
      message: `would be compared with more than ${MAX_SEARCHED_TURNS} turns or 64 MB of texts: narrow from and to, or add other filters`,
    })
  return allOf([
    rowsOf(context, generationKind, 'generations:GetGeneration', sql.fragment`t.id`),
    rowsOf(context, traceKind, 'traces:GetTrace', sql.fragment`t.trace_id`),
    hasText(text),
  ])
}

/** Condition of the turns `t` that the caller may list, in the time range and with these conditions. */
const listedTurns = (context: Listing, conditions: (Fragment | null)[]): Fragment =>
  allOf([
    rowsOf(context, generationKind, 'generations:ListGenerations', sql.fragment`t.id`),
    timeRangeCondition(sql.fragment`t.created_at`, context.page),
    ...conditions,
  ])

/** Returns the condition of the filter by text of a list of turns, whose other filters are given. */
export const hasTurnText = (context: Listing, filters: Filters): Promise<Fragment | null> =>
  searchCondition(context, listedTurns(context, filterConditions(filters, context.query)))

/**
 * Returns the condition of the traces `t` with a turn in the time range that has all properties of the filters by turns, null
 * without such a filter. Raises FORBIDDEN for a caller who may not list turns. The planner reads the turns of an end user or
 * session by its index, and otherwise the turns of the time range by generations_project.
 */
export async function hasTurn(context: Listing): Promise<Fragment | null> {
  const field = Object.keys(filtersOfTraces).find(name => context.query[name] !== undefined)
  if (field === undefined) return null
  requireAction(context, field, generationKind, 'generations:ListGenerations')
  const listed = listedTurns(context, filterConditions(filtersOfTraces, context.query))
  const turns = allOf([listed, await searchCondition(context, listed)])
  return sql.fragment`t.id in (select t.trace_id from generations t where ${turns})`
}
