import { z } from 'zod'
import type { EndUser } from '#control/retention/erasure.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { storableText } from '#core/base/storable-text.ts'
import { traceContext } from '#core/base/telemetry.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { copiedRowIds } from '../datasets/store.ts'
import { type EvalRunRow, evalResultKind, OpenItem, RESULT_STATES, type Score } from './model.ts'

/**
 * Locks a dataset against item changes until the transaction ends, and lists its items (index dataset_items_dataset).
 */
export async function lockDatasetItems(db: Queryable, datasetId: string): Promise<readonly string[]> {
  await db.query(voidStatement`select from datasets where id = ${datasetId} for share`)
  return db.anyFirst(idStatement`
    select id from dataset_items where dataset_id = ${datasetId} order by created_at, id`)
}

/** Inserts the items of a new run as copies of dataset items; results are ordered by these new ids. */
export const insertEvalItems = (
  db: Queryable,
  run: Pick<EvalRunRow, 'id' | 'project_id'>,
  items: readonly { id: string; item_id: string }[],
) =>
  db.query(voidStatement`
    insert into eval_results (id, project_id, eval_run_id, item_id, input, expected_output, metadata, bytes,
      source_generation_id, source_conversation_id, source_actor_id, trace_context)
    select n.id, ${run.project_id}, ${run.id}, i.id, i.input, i.expected_output, i.metadata, i.bytes,
      i.source_generation_id, i.source_conversation_id, i.source_actor_id, ${traceContext()}
    from ${sql.unnest(
      items.map(item => [item.id, item.item_id]),
      ['text', 'text'],
    )} as n (id, item_id) join dataset_items i on i.id = n.item_id`)

const openItem = sql.type(OpenItem)

const openColumns = sql.fragment`t.id, t.project_id, t.eval_run_id, t.item_id, t.state, t.input, t.expected_output, t.metadata,
  t.generation_id, t.content_mode, t.scores,
  coalesce(t.output, (select u.output from eval_answers_unlogged u where u.result_id = t.id)) as output,
  coalesce(t.object, (select u.object from eval_answers_unlogged u where u.result_id = t.id)) as object,
  (select json_build_object('id', r.id, 'project_id', r.project_id, 'eval_id', r.eval_id, 'agent_id', r.agent_id,
    'agent_version', r.agent_version, 'scorers', r.scorers, 'deciders', r.deciders, 'status', r.status, 'context', r.context,
    'authority', r.authority, 'trigger_id', r.trigger_id) from eval_runs r where r.id = t.eval_run_id) as run`

/** An item as a work item, which is its own entity and remains as the result. */
export const itemEntity = { table: 'eval_results', columns: openColumns, row: OpenItem }

/** Locks an item that waits for its turn, or null (primary key). */
export const lockAskedItem = (db: Queryable, id: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from eval_results t where t.id = ${id} and t.state = 'asked' for update of t`)

/** Finds the item that waits for a turn (index eval_results_generation). */
export const findItemOfTurn = (db: Queryable, generationId: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from eval_results t where t.generation_id = ${generationId} and t.state = 'asked'`)

/** Sets the time after which an item that waits for its turn is checked. */
export const extendWait = (db: Queryable, id: string, ms: number) =>
  db.query(voidStatement`update eval_results set due_at = now() + ${ms} * interval '1 ms' where id = ${id}`)

/** Returns the CTEs that update the item and its run in the statement that creates the turn; the item is checked in `ms`. */
export const itemTurnCtes = ({ id, run }: OpenItem, generationId: string, ms: number): Fragment[] => [
  sql.fragment`asked as (
    update eval_results set state = 'asked', generation_id = ${generationId}, due_at = now() + ${ms} * interval '1 ms',
      content_mode = (select mode from runnable)
    where id = ${id} and exists (select from runnable))`,
  ...(run.status === 'queued'
    ? [
        sql.fragment`began as (
          update eval_runs set status = 'running', started_at = now(), active_at = now(), updated_at = now()
          where id = ${run.id} and status = 'queued' and exists (select from runnable))`,
      ]
    : []),
]

/** Stores the output of a turn and queues its item to be scored. */
export const storeAnswer = (
  db: Queryable,
  { id, content_mode }: Pick<OpenItem, 'id' | 'content_mode'>,
  { output, object }: { output: string; object: unknown },
) => {
  const text = storableText(output)
  const queued = sql.fragment`state = 'queued', due_at = now(), failures = 0, losses = 0`
  return content_mode === 'none'
    ? db.query(voidStatement`
        with kept as (
          insert into eval_answers_unlogged (result_id, output, object) values (${id}, ${text}, ${jsonLiteral(object)}))
        update eval_results set ${queued} where id = ${id}`)
    : db.query(voidStatement`
        update eval_results set ${queued}, output = ${text}, object = ${jsonLiteral(object)} where id = ${id}`)
}

const jsonLiteral = (value: unknown): Fragment =>
  value === null || value === undefined ? sql.fragment`null::json` : sql.fragment`${JSON.stringify(value)}::json`

/** Outcome of an item; without `output` the stored output is kept. */
export type ItemEnd = { output?: string | null; scores: readonly Score[]; error: RecordedFailure | null }

const RunProgress = z.object({ left: z.int(), status: z.string() })
const runProgressRow = sql.type(RunProgress)

/**
 * Stores the result of an item that the caller has locked or whose turn it settles, and counts it in its run. Returns the number
 * of remaining items of the run as `left`; null if the item already has a result or does not exist.
 */
export const storeResult = (
  db: Queryable,
  { id, eval_run_id }: Pick<OpenItem, 'id' | 'eval_run_id'>,
  { output, scores, error }: ItemEnd,
): Promise<z.output<typeof RunProgress> | null> => {
  const stored = output === undefined ? sql.fragment`output` : sql.fragment`${output}::text`
  return db.maybeOne(runProgressRow`
    with stored as (
      update eval_results set state = 'done', output = ${stored}, object = null, scores = ${JSON.stringify(scores)},
        passed = ${error === null && scores.every(({ passed }) => passed)}, error = ${jsonb(error)}, due_at = null,
        bytes = bytes + octet_length(coalesce(${stored}, '')) + ${Buffer.byteLength(JSON.stringify(scores))}, created_at = now()
      where id = ${id} and state <> 'done'
      returning id),
    dropped as (delete from eval_answers_unlogged where result_id in (select id from stored))
    update eval_runs set completed_count = completed_count + ${error === null ? 1 : 0},
      errored_count = errored_count + ${error === null ? 0 : 1}, active_at = now(), updated_at = now()
    where id = ${eval_run_id} and exists (select from stored)
    returning item_count - completed_count - errored_count as left, status`)
}

/** Returns a select of one unsettled item of a run (index eval_results_open). */
const openItemOf = (runId: string): Fragment => sql.fragment`
  select id from eval_results where eval_run_id = ${runId} and state <> 'done' limit 1`

/** Whether a run has unsettled items. */
export const hasUnsettledItems = (db: Queryable, runId: string): Promise<boolean> =>
  db.exists(idStatement`${openItemOf(runId)}`)

/** Removes the tool context of a run without unsettled items; the caller holds the run lock. */
export const deleteToolContext = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    update eval_runs set context = null
    where id = ${runId} and context is not null and not exists (${openItemOf(runId)})`)

/** Deletes the items of a run without a turn (index eval_results_open). */
export const deleteUnstarted = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    delete from eval_results
    where eval_run_id = ${runId} and state in ('queued', 'running') and generation_id is null`)

const ItemOutcome = z.object({
  item_id: z.string(),
  passed: z.boolean(),
  scores: z.custom<readonly Score[]>(),
  errored: z.boolean(),
  label: z.unknown(),
})
export type ItemOutcome = z.output<typeof ItemOutcome>
const outcomeRow = sql.type(ItemOutcome)

/** Most characters of a group label; longer values do not form groups. */
const MAX_LABEL_CHARS = 255

/**
 * Lists the outcomes of a run with the group label from the current item metadata, or from the result if the item was
 * deleted. Selects only the fields to aggregate: a run has up to a million items with scores of up to 320 KiB each
 * (index eval_results_done).
 */
export const listOutcomes = (db: Queryable, runId: string, groupBy: string | null): Promise<readonly ItemOutcome[]> =>
  db.any(outcomeRow`
    select t.item_id, coalesce(t.passed, false) as passed, t.error is not null as errored,
      (select coalesce(json_agg(json_build_object('scorer', s -> 'scorer', 'score', s -> 'score', 'passed', s -> 'passed')), '[]')
        from json_array_elements(t.scores) s) as scores,
      ${
        groupBy === null
          ? sql.fragment`null`
          : sql.fragment`(
        select case when json_typeof(m.value) = 'string' and char_length(m.value #>> '{}') <= ${MAX_LABEL_CHARS} then m.value end
        from (select (case when i.id is null then t.metadata else i.metadata end) -> ${groupBy}::text as value) m)`
      } as label
    from eval_results t ${groupBy === null ? sql.fragment`` : sql.fragment`left join dataset_items i on i.id = t.item_id`}
    where t.eval_run_id = ${runId} and t.state = 'done' order by t.id`)

/** Finds the newest run in which an agent version passed the current revision of an eval (index eval_runs_passed). */
export const findPassedRun = (db: Queryable, evalId: string, version: number): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select r.id from eval_runs r join evals e on e.id = r.eval_id
    where r.eval_id = ${evalId} and r.agent_version = ${version} and r.status = 'completed' and r.passed
      and r.eval_revision = e.revision and r.agent_id = e.agent_id
    order by r.created_at desc, r.id desc limit 1`)

const unsettledRunRow = sql.type(z.object({ id: z.string(), project_id: z.string() }))

/** Lists live runs with a result for every item, whose last result is `silentMs` old (index eval_runs_live). */
export const listUnsettledRuns = (db: Queryable, { silentMs, limit }: { silentMs: number; limit: number }) =>
  db.any(unsettledRunRow`
    select id, project_id from eval_runs
    where status in ('queued', 'running') and active_at < now() - ${silentMs} * interval '1 ms'
      and completed_count + errored_count >= item_count
    order by active_at limit ${limit}`)

/** Condition that a live run or an overdue item exists (indexes eval_runs_live, eval_results_due). */
export const hasEvalWork: Fragment = sql.fragment`(
  exists (select from eval_runs where status in ('queued', 'running')) or exists (select from eval_results where due_at < now()))`

/** Erases the outputs of turns. Returns the number of changed results (index eval_results_generation). */
export const eraseOutputs = async (db: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await db.query(voidStatement`
      update eval_results set output = null, object = null,
        bytes = bytes - case state when 'done' then octet_length(coalesce(output, '')) else 0 end
      where generation_id = any(${sql.array([...generationIds], 'text')}) and (output is not null or object is not null)`)
  ).rowCount

/** Footprint of eval results (index eval_results_project). */
export const resultFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(t.bytes) from eval_results t where t.project_id = ${project}`,
})

/** Returns the ids that are runs of an eval (primary key). */
export const listExistingRuns = (db: Queryable, evalId: string, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from eval_runs where id = any(${sql.array([...ids], 'text')}) and eval_id = ${evalId}`)

/** Lists the results of items in several runs (unique index on runs and items). */
export const listResultsOfItems = (db: Queryable, runIds: readonly string[], itemIds: readonly string[]) =>
  db.any(evalResultKind.sql`
    select ${evalResultKind.columns} from eval_results t
    where t.eval_run_id = any(${sql.array([...runIds], 'text')}) and t.item_id = any(${sql.array([...itemIds], 'text')})
      and t.state = 'done'`)

const stateRow = sql.type(z.object({ state: z.enum(RESULT_STATES) }))

/** Finds the state of an item; null if the turn for which it waits is gone (primary keys). */
export const findItemState = (db: Queryable, id: string) =>
  db.maybeOne(stateRow`
    select state from eval_results t
    where id = ${id} and (state <> 'asked' or exists (select from generations g where g.id = t.generation_id))`)

/** Lists unerased results copied from an end user, after an id, of runs created up to `until`. */
export const listResultsOfEndUser = (
  db: Queryable,
  endUser: EndUser,
  { until, after, limit }: { until: string; after: string; limit: number },
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from eval_results t join eval_runs r on r.id = t.eval_run_id
    where t.id in (${copiedRowIds('eval_results', endUser)}) and t.project_id = ${endUser.project_id}
      and r.created_at <= ${until}::timestamptz and t.input::text <> '[]' and t.id > ${after}
    order by t.id limit ${limit}`)

/** Locks the unsettled items among `ids`. */
export const lockUnsettledItems = (db: Queryable, ids: readonly string[]): Promise<readonly OpenItem[]> =>
  db.any(openItem`
    select ${openColumns} from eval_results t
    where t.id = any(${sql.array([...ids], 'text')}) and t.state <> 'done' order by t.id for update of t`)

/** Lists the decisions of scorers of results (primary key). */
export const listDecisionsOfResults = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select s.value ->> 'decision_id' as id from eval_results t cross join lateral json_array_elements(t.scores) s
    where t.id = any(${sql.array([...ids], 'text')}) and s.value ->> 'decision_id' is not null`)

const traceRow = sql.type(z.strictObject({ trace_id: z.string() }))

/** Lists the root traces of the turns of results and of their decisions (primary keys). */
export const listTracesOfResults = (
  db: Queryable,
  ids: readonly string[],
  decisionIds: readonly string[],
): Promise<readonly string[]> =>
  db.anyFirst(traceRow`
    with named as (
      select generation_id as id from eval_results where id = any(${sql.array([...ids], 'text')})
      union select generation_id from decisions where id = any(${sql.array([...decisionIds], 'text')})
    )
    select distinct coalesce(t.root_trace_id, t.id) as trace_id
    from named n join generations g on g.id = n.id join traces t on t.id = g.trace_id
    where t.content_redacted_at is null`)

/** Erases the content of results. Scores, verdicts and the fact that an item failed remain. */
export const eraseResults = async (db: Queryable, ids: readonly string[], error: object): Promise<number> =>
  (
    await db.query(voidStatement`
      update eval_results t set input = '[]', expected_output = null, metadata = null, output = null, object = null,
        scores = (select coalesce(json_agg(s.value::jsonb - 'reasoning'), '[]') from json_array_elements(t.scores) s),
        error = case when t.error is not null then ${jsonb(error)} end,
        bytes = 2 + octet_length((select coalesce(json_agg(s.value::jsonb - 'reasoning'), '[]')::text from json_array_elements(t.scores) s))
      where id = any(${sql.array([...ids], 'text')}) and state = 'done'`)
  ).rowCount

/** Changes the source actor of results (index eval_results_source_actor). */
export const reassignResults = (db: Queryable, from: string, to: string) =>
  db.query(voidStatement`update eval_results set source_actor_id = ${to} where source_actor_id = ${from}`)
