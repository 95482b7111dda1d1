import { z } from 'zod'
import type { EndUser } from '../../control/retention/erasure.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableText } from '../../core/api/storable-text.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { copiedFrom } from '../datasets/store.ts'
import { type EvalRunRow, evalResultKind, OpenItem, type Score, STATES } from './model.ts'

/** The items of a dataset in their order, which nobody adds to or takes from until the transaction ends. By dataset_items_dataset. */
export async function heldItems(db: Queryable, datasetId: string): Promise<readonly string[]> {
  await db.query(voidStatement`select from datasets where id = ${datasetId} for share`)
  return db.anyFirst(idStatement`
    select id from dataset_items where dataset_id = ${datasetId} order by created_at, id`)
}

/** Writes the items of a new run as they are now, each under an id of its own; the order of the ids is that of the results. */
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

/** An item that waits for its turn, under its lock; null when it does not wait. By the primary keys. */
export const lockQueued = (db: Queryable, id: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from ${openTables} where t.id = ${id} and t.state = 'queued' for update of t`)

/** The item that a turn answers, while it waits for that. By eval_results_generation. */
export const itemOfTurn = (db: Queryable, generationId: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    select ${openColumns} from ${openTables} where t.generation_id = ${generationId} and t.state = 'asked'`)

/** Puts off an item whose project is paused. */
export const deferItem = (db: Queryable, id: string, ms: number) =>
  db.query(voidStatement`
    update eval_results set held_until = now() + ${ms} * interval '1 ms' where id = ${id} and state in ('queued', 'answered')`)

/** What the statement that makes the turn of an item writes beside it. */
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

/** Keeps what a turn answered until the scorers have judged it. */
export const storeAnswer = (
  db: Queryable,
  { id, content_mode }: Pick<OpenItem, 'id' | 'content_mode'>,
  { output, object }: { output: string; object: unknown },
) => {
  const text = storableText(output)
  return content_mode === 'none'
    ? db.query(voidStatement`
        with kept as (
          insert into eval_answers_unlogged (result_id, output, object) values (${id}, ${text}, ${asJson(object)}))
        update eval_results set state = 'answered' where id = ${id}`)
    : db.query(voidStatement`
        update eval_results set state = 'answered', output = ${text}, object = ${asJson(object)} where id = ${id}`)
}

const asJson = (value: unknown): Fragment =>
  value === null || value === undefined ? sql.fragment`null::json` : sql.fragment`${JSON.stringify(value)}::json`

/** Claims an item that was answered, for scoring; null when it does not wait for that. */
export const claimAnswered = (db: Queryable, id: string): Promise<OpenItem | null> =>
  db.maybeOne(openItem`
    with claimed as (
      update eval_results set claims = claims + 1 where id = ${id} and state = 'answered' returning id, claims as claim)
    select ${openColumns}, (select claim from claimed) as claims
    from ${openTables} where t.id = (select id from claimed)`)

/** Keeps what scorers have said so far; false when another worker has the item. */
export const storeScores = async (
  db: Queryable,
  { id, claims }: Pick<OpenItem, 'id' | 'claims'>,
  scores: OpenItem['scores'],
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update eval_results set scores = ${JSON.stringify(scores)} where id = ${id} and claims = ${claims} and state = 'answered'`)
  ).rowCount === 1

/** How an item ends. */
export type ItemEnd = { output: string | null; scores: readonly Score[]; error: RecordedFailure | null }

const Counted = z.object({ left: z.int(), status: z.string() })
const counted = sql.type(Counted)

/**
 * Stores the result of an item that is in one of some states, and counts it in its run, whose row it takes first. Returns how
 * many items of the run are left; null when the item has a result or is gone.
 */
export const storeResult = (
  db: Queryable,
  item: Pick<OpenItem, 'id' | 'eval_run_id' | 'claims'>,
  from: 'queued' | 'asked' | 'answered',
  { output, scores, error }: ItemEnd,
): Promise<z.output<typeof Counted> | null> => {
  // What was answered is on the row already, unless it was purged while it was scored.
  const shown = from === 'answered' ? sql.fragment`output` : sql.fragment`${output}::text`
  return db.maybeOne(counted`
    with held as materialized (select id from eval_runs where id = ${item.eval_run_id} for no key update),
    stored as (
      update eval_results set state = 'done', output = ${shown}, object = null, scores = ${JSON.stringify(scores)},
        passed = ${error === null && scores.every(({ passed }) => passed)}, error = ${jsonb(error)}, held_until = null,
        bytes = bytes + octet_length(coalesce(${shown}, '')) + ${Buffer.byteLength(JSON.stringify(scores))}, created_at = now()
      where id = ${item.id} and state = ${from} and claims = ${item.claims} and exists (select from held)
      returning id),
    dropped as (delete from eval_answers_unlogged where result_id in (select id from stored))
    update eval_runs set completed_count = completed_count + ${error === null ? 1 : 0},
      errored_count = errored_count + ${error === null ? 0 : 1}, active_at = now(), updated_at = now()
    where id = ${item.eval_run_id} and exists (select from stored)
    returning item_count - completed_count - errored_count as left, status`)
}

/** Drops answers of a run that are not kept, and that nobody may score any more. By eval_results_open and the primary key. */
export const deleteAnswers = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    delete from eval_answers_unlogged where result_id in (
      select id from eval_results where eval_run_id = ${runId} and state = 'answered')`)

/** An item of a run that is under way. By eval_results_open. */
const openItemOf = (runId: string): Fragment => sql.fragment`
  select id from eval_results where eval_run_id = ${runId} and state in ('queued', 'asked', 'answered') limit 1`

/** Whether items of a run are under way. */
export const hasOpenItems = (db: Queryable, runId: string): Promise<boolean> =>
  db.exists(idStatement`${openItemOf(runId)}`)

/** Drops the tool context of a run with its last item; the caller holds the run. */
export const dropContext = (db: Queryable, runId: string) =>
  db.query(voidStatement`
    update eval_runs set context = null
    where id = ${runId} and context is not null and not exists (${openItemOf(runId)})`)

/** Drops the items of a run that nobody was asked yet. By eval_results_open. */
export const dropQueued = (db: Queryable, runId: string) =>
  db.query(voidStatement`delete from eval_results where eval_run_id = ${runId} and state = 'queued'`)

const ItemOutcome = z.object({
  item_id: z.string(),
  passed: z.boolean(),
  scores: z.custom<readonly Score[]>(),
  errored: z.boolean(),
  label: z.unknown(),
})
export type ItemOutcome = z.output<typeof ItemOutcome>
const outcome = sql.type(ItemOutcome)

/** Characters of a label by which items are grouped: what is longer is a text, not a label. */
const MOST_LABEL = 255

/**
 * What came of the items of a run, with the value of a key of their metadata: as the items stand now, of deleted ones as they
 * were asked. Only what figures are made of: a run has up to a million items, and what scorers say of each up to 320 KiB. By
 * eval_results_done.
 */
export const outcomesOf = (db: Queryable, runId: string, groupBy: string | null): Promise<readonly ItemOutcome[]> =>
  db.any(outcome`
    select t.item_id, coalesce(t.passed, false) as passed, t.error is not null as errored,
      (select coalesce(json_agg(json_build_object('scorer', s -> 'scorer', 'score', s -> 'score', 'passed', s -> 'passed')), '[]')
        from json_array_elements(t.scores) s) as scores,
      ${
        groupBy === null
          ? sql.fragment`null`
          : sql.fragment`(
        select case when json_typeof(m.value) = 'string' and char_length(m.value #>> '{}') <= ${MOST_LABEL} then m.value end
        from (select (case when i.id is null then t.metadata else i.metadata end) -> ${groupBy}::text as value) m)`
      } as label
    from eval_results t ${groupBy === null ? sql.fragment`` : sql.fragment`left join dataset_items i on i.id = t.item_id`}
    where t.eval_run_id = ${runId} and t.state = 'done' order by t.id`)

/** The newest run by which a version of an agent passed an eval as it is now. By eval_runs_passed. */
export const passedRun = (db: Queryable, evalId: string, version: number): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select r.id from eval_runs r join evals e on e.id = r.eval_id
    where r.eval_id = ${evalId} and r.agent_version = ${version} and r.status = 'completed' and r.passed
      and r.eval_revision = e.revision and r.agent_id = e.agent_id
    order by r.created_at desc, r.id desc limit 1`)

const held = sql.type(
  z.object({ result_id: z.string(), eval_run_id: z.string(), project_id: z.string(), state: z.enum(STATES) }),
)

/** Items that a pause held and whose time has come; they are not held any more. By eval_results_held. */
export const releaseDeferredItems = (db: Queryable, limit: number) =>
  db.any(held`
    update eval_results set held_until = null where id in (
      select t.id from eval_results t where t.held_until < now() order by t.held_until limit ${limit} for update skip locked)
    returning id as result_id, eval_run_id, project_id, state`)

/** Lets the items of a project that a pause held go on at once. By eval_results_held. */
export const releaseProjectItems = (db: Queryable, projectId: string) =>
  db.query(voidStatement`
    update eval_results set held_until = now() where held_until is not null and project_id = ${projectId}`)

/** Items whose turn was deleted before it ended, oldest run first; also of canceled runs, whose items end as well. By eval_results_open. */
export const listOrphanedItems = (db: Queryable, limit: number) =>
  db.any(openItem`
    select ${openColumns} from ${openTables}
    where t.state = 'asked' and r.status in ('queued', 'running', 'canceled')
      and not exists (select from generations g where g.id = t.generation_id)
    order by t.eval_run_id limit ${limit}`)

const quiet = sql.type(z.object({ id: z.string(), project_id: z.string(), whole: z.boolean(), abandoned: z.boolean() }))

/**
 * Runs that are live and quiet: `whole` when every item has a result, `abandoned` when nobody works on the rest of it and that
 * has been so for long. A turn that has not ended is work, and so is a message; a paused project is waited for. Others are none
 * of them, so that runs which wait for their turn, however many, keep nobody's from being found. By eval_runs_live. Messages
 * are read once, and only where a run has been quiet for long.
 */
export const listStaleRuns = (
  db: Queryable,
  { quietMs, abandonedMs, limit }: { quietMs: number; abandonedMs: number; limit: number },
) =>
  db.any(quiet`
    with silent as materialized (
      select r.id, r.project_id, r.active_at, r.completed_count + r.errored_count >= r.item_count as whole,
        r.active_at < now() - ${abandonedMs} * interval '1 ms' as old
      from eval_runs r join projects p on p.id = r.project_id
      where r.status in ('queued', 'running') and r.active_at < now() - ${quietMs} * interval '1 ms' and p.paused_at is null),
    working as materialized (
      select distinct j.data ->> 'eval_run_id' as id from pgboss.job j
      where j.name in ('eval.execute_item', 'eval.score_item', 'eval.complete_run') and j.state < 'completed'
        and exists (select from silent where old and not whole))
    select id, project_id, whole, not whole as abandoned from silent
    where whole or (old and id not in (select id from working where id is not null) and not exists (
      select from eval_results t join generations g on g.id = t.generation_id
      where t.eval_run_id = silent.id and t.state = 'asked' and g.status in ('pending', 'in_progress')))
    order by whole desc, active_at limit ${limit}`)

/** Whether a run is live. By eval_runs_live. */
export const hasLiveEvalRuns: Fragment = sql.fragment`exists (select from eval_runs where status in ('queued', 'running'))`

/** Erases what turns answered. Returns how many results had something of it. By eval_results_generation. */
export const eraseOutputs = async (db: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await db.query(voidStatement`
      update eval_results set output = null, object = null,
        bytes = bytes - case state when 'done' then octet_length(coalesce(output, '')) else 0 end
      where generation_id = any(${sql.array([...generationIds], 'text')}) and (output is not null or object is not null)`)
  ).rowCount

/** What the results of evals take, by eval_results_project. */
export const resultFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(t.bytes) from eval_results t where t.project_id = ${project}`,
})

/** Those of some ids that are runs of an eval. By the primary key. */
export const runsById = (db: Queryable, evalId: string, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from eval_runs where id = any(${sql.array([...ids], 'text')}) and eval_id = ${evalId}`)

/** Results of several runs of some items. By the unique index of runs and items. */
export const resultsOf = (db: Queryable, runIds: readonly string[], itemIds: readonly string[]) =>
  db.any(evalResultKind.sql`
    select ${evalResultKind.columns} from eval_results t
    where t.eval_run_id = any(${sql.array([...runIds], 'text')}) and t.item_id = any(${sql.array([...itemIds], 'text')})
      and t.state = 'done'`)

/** Takes the row of a run; false when it is gone. */
export const lockRun = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.anyFirst(idStatement`select id from eval_runs where id = ${id} for no key update`)).length === 1

const stated = sql.type(z.object({ state: z.enum(STATES) }))

/** How an item stands; null when it is gone. By the primary key. */
export const evalRunState = (db: Queryable, resultId: string) =>
  db.maybeOne(stated`select state from eval_results where id = ${resultId}`)

const ofEndUser = sql.type(z.strictObject({ id: z.string() }))

/** Results of runs up to a time that were copied from an end user and keep what it said, after an id. */
export const resultsOfEndUser = (
  db: Queryable,
  endUser: EndUser,
  { until, after, limit }: { until: string; after: string; limit: number },
): Promise<readonly string[]> =>
  db.anyFirst(ofEndUser`
    select t.id from eval_results t join eval_runs r on r.id = t.eval_run_id
    where t.id in (${copiedFrom('eval_results', endUser)}) and t.project_id = ${endUser.project_id}
      and r.created_at <= ${until}::timestamptz and t.input::text <> '[]' and t.id > ${after}
    order by t.id limit ${limit}`)

/** Items of runs by their ids, as far as they have no result yet, under their locks. */
export const lockOpen = (db: Queryable, ids: readonly string[]): Promise<readonly OpenItem[]> =>
  db.any(openItem`
    select ${openColumns} from ${openTables}
    where t.id = any(${sql.array([...ids], 'text')}) and t.state <> 'done' order by t.id for update of t`)

/** Decisions that scorers of results asked for. By eval_results_pkey. */
export const decisionsOfResults = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select s.value ->> 'decision_id' as id from eval_results t cross join lateral json_array_elements(t.scores) s
    where t.id = any(${sql.array([...ids], 'text')}) and s.value ->> 'decision_id' is not null`)

const traced = sql.type(z.strictObject({ trace_id: z.string() }))

/** Roots of the traces of turns that answered results, or by which decisions about them were made. By primary keys. */
export const tracesOfResults = (
  db: Queryable,
  ids: readonly string[],
  decisionIds: readonly string[],
): Promise<readonly string[]> =>
  db.anyFirst(traced`
    with named as (
      select generation_id as id from eval_results where id = any(${sql.array([...ids], 'text')})
      union select generation_id from decisions where id = any(${sql.array([...decisionIds], 'text')})
    )
    select distinct coalesce(t.root_trace_id, t.id) as trace_id
    from named n join generations g on g.id = n.id join traces t on t.id = g.trace_id
    where t.content_redacted_at is null`)

/**
 * Empties results: what was asked, answered and expected, and what was said of it. Scores and verdicts stay, and so does that an
 * item failed.
 */
export const eraseResults = async (db: Queryable, ids: readonly string[], error: object): Promise<number> =>
  (
    await db.query(voidStatement`
      update eval_results t set input = '[]', expected_output = null, metadata = null, output = null, object = null,
        scores = (select coalesce(json_agg(s.value::jsonb - 'reasoning'), '[]') from json_array_elements(t.scores) s),
        error = case when t.error is not null then ${jsonb(error)} end,
        bytes = 2 + octet_length((select coalesce(json_agg(s.value::jsonb - 'reasoning'), '[]')::text from json_array_elements(t.scores) s))
      where id = any(${sql.array([...ids], 'text')}) and state = 'done'`)
  ).rowCount

/** Gives results to another actor. By eval_results_source_actor. */
export const moveResults = (db: Queryable, from: string, to: string) =>
  db.query(voidStatement`update eval_results set source_actor_id = ${to} where source_actor_id = ${from}`)
