import { z } from 'zod'
import type { EndUser } from '../../control/retention/erasure.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableText } from '../../core/api/storable-text.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
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
      source_generation_id, source_conversation_id, source_actor_id)
    select n.id, ${run.project_id}, ${run.id}, i.id, i.input, i.expected_output, i.metadata, i.bytes,
      i.source_generation_id, i.source_conversation_id, i.source_actor_id
    from ${sql.unnest(
      items.map(item => [item.id, item.item_id]),
      ['text', 'text'],
    )} as n (id, item_id) join dataset_items i on i.id = n.item_id`)

const openItem = sql.type(OpenItem)

/** Columns of an item `t` of a run `r` in a project `p`. */
const openColumns = sql.fragment`t.id, t.project_id, t.eval_run_id, t.item_id, t.state, t.input, t.expected_output, t.metadata,
  t.generation_id, t.content_mode, coalesce(t.output, u.output) as output, coalesce(t.object, u.object) as object, t.scores, t.claims,
  p.paused_at is not null as paused,
  json_build_object('id', r.id, 'project_id', r.project_id, 'eval_id', r.eval_id, 'agent_id', r.agent_id, 'agent_version', r.agent_version,
    'scorers', r.scorers, 'deciders', r.deciders, 'status', r.status, 'context', r.context, 'authority', r.authority,
    'trigger_id', r.trigger_id) as run`

const openTables = sql.fragment`eval_results t join eval_runs r on r.id = t.eval_run_id join projects p on p.id = t.project_id
  left join eval_answers_unlogged u on u.result_id = t.id`

/** Locks a queued item; null if it is not queued (primary keys). */
export const lockQueuedItem = (db: Queryable, id: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from ${openTables} where t.id = ${id} and t.state = 'queued' for update of t`)

/** Finds the item that waits for a turn (index eval_results_generation). */
export const findItemOfTurn = (db: Queryable, generationId: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from ${openTables} where t.generation_id = ${generationId} and t.state = 'asked'`)

/** Defers an item whose project is paused. */
export const deferItem = (db: Queryable, id: string, ms: number) =>
  db.query(voidStatement`
    update eval_results set held_until = now() + ${ms} * interval '1 ms' where id = ${id} and state in ('queued', 'answered')`)

/** Returns the CTEs that update the item and its run in the statement that creates the turn. */
export const itemTurnCtes = (id: string, run: Pick<EvalRunRow, 'id' | 'status'>, generationId: string): Fragment[] => [
  sql.fragment`asked as (
    update eval_results set state = 'asked', generation_id = ${generationId}, held_until = null,
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

/** Stores the output of a turn until it is scored. */
export const storeAnswer = (
  db: Queryable,
  { id, content_mode }: Pick<OpenItem, 'id' | 'content_mode'>,
  { output, object }: { output: string; object: unknown },
) => {
  const text = storableText(output)
  return content_mode === 'none'
    ? db.query(voidStatement`
        with kept as (
          insert into eval_answers_unlogged (result_id, output, object) values (${id}, ${text}, ${jsonLiteral(object)}))
        update eval_results set state = 'answered' where id = ${id}`)
    : db.query(voidStatement`
        update eval_results set state = 'answered', output = ${text}, object = ${jsonLiteral(object)} where id = ${id}`)
}

const jsonLiteral = (value: unknown): Fragment =>
  value === null || value === undefined ? sql.fragment`null::json` : sql.fragment`${JSON.stringify(value)}::json`

/** Claims an answered item for scoring; null if it is not in that state. */
export const claimAnswered = (db: Queryable, id: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    with claimed as (
      update eval_results set claims = claims + 1 where id = ${id} and state = 'answered' returning id, claims as claim)
    select ${openColumns}, (select claim from claimed) as claims
    from ${openTables} where t.id = (select id from claimed)`)

/** Stores the scores so far; false if another worker has claimed the item. */
export const storeScores = async (
  db: Queryable,
  { id, claims }: Pick<OpenItem, 'id' | 'claims'>,
  scores: OpenItem['scores'],
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update eval_results set scores = ${JSON.stringify(scores)} where id = ${id} and claims = ${claims} and state = 'answered'`)
  ).rowCount === 1

/** Outcome of an item. */
export type ItemEnd = { output: string | null; scores: readonly Score[]; error: RecordedFailure | null }

const RunProgress = z.object({ left: z.int(), status: z.string() })
const runProgressRow = sql.type(RunProgress)

/**
 * Stores the result of an item in state `from` and counts it in its run; locks the run first. Returns the number of
 * remaining items of the run as `left`; null if the item already has a result or does not exist.
 */
export const storeResult = (
  db: Queryable,
  item: Pick<OpenItem, 'id' | 'eval_run_id' | 'claims'>,
  from: 'queued' | 'asked' | 'answered',
  { output, scores, error }: ItemEnd,
): Promise<z.output<typeof RunProgress> | null> => {
  // An answered item already has its output, unless it was purged during scoring.
  const stored = from === 'answered' ? sql.fragment`output` : sql.fragment`${output}::text`
  return db.maybeOne(runProgressRow`
    with held as materialized (select id from eval_runs where id = ${item.eval_run_id} for no key update),
    stored as (
      update eval_results set state = 'done', output = ${stored}, object = null, scores = ${JSON.stringify(scores)},
        passed = ${error === null && scores.every(({ passed }) => passed)}, error = ${jsonb(error)}, held_until = null,
        bytes = bytes + octet_length(coalesce(${stored}, '')) + ${Buffer.byteLength(JSON.stringify(scores))}, created_at = now()
      where id = ${item.id} and state = ${from} and claims = ${item.claims} and exists (select from held)
      returning id),
    dropped as (delete from eval_answers_unlogged where result_id in (select id from stored))
    update eval_runs set completed_count = completed_count + ${error === null ? 1 : 0},
      errored_count = errored_count + ${error === null ? 0 : 1}, active_at = now(), updated_at = now()
    where id = ${item.eval_run_id} and exists (select from stored)
    returning item_count - completed_count - errored_count as left, status`)
}

/** Deletes the unlogged outputs of a run that will not be scored (index eval_results_open, primary key). */
export const deleteAnswers = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    delete from eval_answers_unlogged where result_id in (
      select id from eval_results where eval_run_id = ${runId} and state = 'answered')`)

/** Returns a select of one unsettled item of a run (index eval_results_open). */
const openItemOf = (runId: string): Fragment => sql.fragment`
  select id from eval_results where eval_run_id = ${runId} and state in ('queued', 'asked', 'answered') limit 1`

/** Whether a run has unsettled items. */
export const hasUnsettledItems = (db: Queryable, runId: string): Promise<boolean> =>
  db.exists(idStatement`${openItemOf(runId)}`)

/** Removes the tool context of a run without unsettled items; the caller holds the run lock. */
export const deleteToolContext = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    update eval_runs set context = null
    where id = ${runId} and context is not null and not exists (${openItemOf(runId)})`)

/** Deletes the queued items of a run (index eval_results_open). */
export const deleteQueued = (db: Queryable, runId: string) =>
  db.query(voidStatement`delete from eval_results where eval_run_id = ${runId} and state = 'queued'`)

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

const deferredRow = sql.type(
  z.object({ result_id: z.string(), eval_run_id: z.string(), project_id: z.string(), state: z.enum(RESULT_STATES) }),
)

/** Releases up to `limit` due deferred items and returns them (index eval_results_held). */
export const releaseDeferredItems = (db: Queryable, limit: number) =>
  db.any(deferredRow`
    update eval_results set held_until = null where id in (
      select t.id from eval_results t where t.held_until < now() order by t.held_until limit ${limit} for update skip locked)
    returning id as result_id, eval_run_id, project_id, state`)

/** Makes the deferred items of a project due immediately (index eval_results_held). */
export const releaseProjectItems = (db: Queryable, projectId: string) =>
  db.query(voidStatement`
    update eval_results set held_until = now() where held_until is not null and project_id = ${projectId}`)

/** Lists items whose turn was deleted, oldest run first, including items of canceled runs (index eval_results_open). */
export const listOrphanedItems = (db: Queryable, limit: number) =>
  db.any(openItem`
    select ${openColumns} from ${openTables}
    where t.state = 'asked' and r.status in ('queued', 'running', 'canceled')
      and not exists (select from generations g where g.id = t.generation_id)
    order by t.eval_run_id limit ${limit}`)

const staleRunRow = sql.type(
  z.object({ id: z.string(), project_id: z.string(), whole: z.boolean(), abandoned: z.boolean() }),
)

/**
 * Lists live runs without recent activity: `whole` if every item has a result, `abandoned` if there has been no
 * activity for `abandonedMs` and no message or active turn is left. Excludes runs of paused projects and runs that only
 * wait for workers, so that these cannot fill the limit. Reads messages once, and only if a run is old enough (index
 * eval_runs_live).
 */
export const listStaleRuns = (
  db: Queryable,
  { staleMs, abandonedMs, limit }: { staleMs: number; abandonedMs: number; limit: number },
) =>
  db.any(staleRunRow`
    with silent as materialized (
      select r.id, r.project_id, r.active_at, r.completed_count + r.errored_count >= r.item_count as whole,
        r.active_at < now() - ${abandonedMs} * interval '1 ms' as old
      from eval_runs r join projects p on p.id = r.project_id
      where r.status in ('queued', 'running') and r.active_at < now() - ${staleMs} * interval '1 ms' and p.paused_at is null),
    working as materialized (
      select distinct j.data ->> 'eval_run_id' as id from pgboss.job j
      where j.name in ('eval.execute_item', 'eval.score_item', 'eval.complete_run') and j.state < 'completed'
        and exists (select from silent where old and not whole))
    select id, project_id, whole, not whole as abandoned from silent
    where whole or (old and id not in (select id from working where id is not null) and not exists (
      select from eval_results t join generations g on g.id = t.generation_id
      where t.eval_run_id = silent.id and t.state = 'asked' and g.status in ('pending', 'in_progress')))
    order by whole desc, active_at limit ${limit}`)

/** Condition that a live run exists (index eval_runs_live). */
export const hasLiveEvalRuns: Fragment = sql.fragment`exists (select from eval_runs where status in ('queued', 'running'))`

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

/** Locks a run; false if it does not exist. */
export const lockRun = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.anyFirst(idStatement`select id from eval_runs where id = ${id} for no key update`)).length === 1

const stateRow = sql.type(z.object({ state: z.enum(RESULT_STATES) }))

/** Finds the state of an item (primary key). */
export const findItemState = (db: Queryable, resultId: string) =>
  db.maybeOne(stateRow`select state from eval_results where id = ${resultId}`)

const resultIdRow = sql.type(z.strictObject({ id: z.string() }))

/** Lists unerased results copied from an end user, after an id, of runs created up to `until`. */
export const listResultsOfEndUser = (
  db: Queryable,
  endUser: EndUser,
  { until, after, limit }: { until: string; after: string; limit: number },
): Promise<readonly string[]> =>
  db.anyFirst(resultIdRow`
    select t.id from eval_results t join eval_runs r on r.id = t.eval_run_id
    where t.id in (${copiedRowIds('eval_results', endUser)}) and t.project_id = ${endUser.project_id}
      and r.created_at <= ${until}::timestamptz and t.input::text <> '[]' and t.id > ${after}
    order by t.id limit ${limit}`)

/** Locks the unsettled items among `ids`. */
export const lockUnsettledItems = (db: Queryable, ids: readonly string[]): Promise<readonly OpenItem[]> =>
  db.any(openItem`
    select ${openColumns} from ${openTables}
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
