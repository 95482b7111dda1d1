import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { isStopping, LIVE, RunRow as RunShape } from '../model.ts'
import type { DescendantsMessage } from '../queue.ts'
import { RunRef, runColumns } from '../store.ts'

/** Trees of runs: a run with its descendants. */

/**
 * Begins the transaction of a page: the estimates for trees are a thousand times too high, and compiling a statement takes
 * longer than the page.
 */
export const withoutJit = (tx: Queryable): Promise<unknown> => setForTransaction(tx, { jit: 'off' })

const runRefRow = sql.type(RunRef)
const CancelledRun = RunShape.extend({ was_running: z.boolean() })
/** A cancelled run, and whether it held a slot of its project. */
export type CancelledRun = z.output<typeof CancelledRun>
const cancelledRow = sql.type(CancelledRun)

/**
 * Condition of the runs that some runs, or one node execution of them, started: the roots of trees. By
 * orchestration_runs_parent.
 */
export const runsStartedBy = (runIds: readonly string[], executionId: string | null = null): Fragment =>
  sql.fragment`r.parent_id = any(${sql.array([...runIds], 'text')})
      and (${executionId}::text is null or r.parent_execution_id = ${executionId})`

/** Condition of the runs of an orchestration, as the roots of trees. By orchestration_runs_orchestration. */
export const runsOfOrchestration = (orchestrationId: string): Fragment =>
  sql.fragment`r.orchestration_id = ${orchestrationId}`

/**
 * Returns the CTE `tree` of the live runs of trees. By orchestration_runs_parent: without statistics of a tree,
 * the planner would read the whole table at each depth if the queries were not lateral.
 */
const liveTree = (roots: Fragment): Fragment => sql.fragment`
    tree as (
      select r.id, r.run_depth from orchestration_runs r where ${roots} and r.status in ${LIVE}
      union
      select r.id, r.run_depth from tree cross join lateral (
        select r.id, r.run_depth from orchestration_runs r where r.parent_id = tree.id and r.status in ${LIVE} offset 0) r)`

/**
 * Returns the CTE `locked` of the live runs of trees, locked parents first. Misses runs that one of them starts
 * concurrently.
 */
const lockedTree = (roots: Fragment): Fragment => sql.fragment`
    recursive ${liveTree(roots)},
    locked as (
      select r.id, r.before from (select id from tree order by run_depth, id) as t cross join lateral (
        select r.id, r.status as before from orchestration_runs r
        where r.id = t.id and r.status in ${LIVE} for update of r) r)`

/** Returns the CTE `locked` of live runs of the same depth. */
const lockedRuns = (ids: readonly string[]): Fragment => sql.fragment`
    locked as (
      select id, status as before from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and status in ${LIVE} order by id for update)`

/** Whether trees have more than `limit` live runs. Reads no more than that. */
export const hasMoreLiveRuns = (db: Queryable, roots: Fragment, limit: number): Promise<boolean> =>
  db.exists(idStatement`with recursive ${liveTree(roots)} select id from tree offset ${limit} limit 1`)

const cancelUpdate = sql.fragment`
    update orchestration_runs t set status = 'cancelled', revision = t.revision + 1, active_nodes = '{}', required_actions = '[]',
      context = null, wake_at = null, due_at = null, queued_at = null, completed_at = now(), updated_at = now()
    from locked where t.id = locked.id and t.id = any(array(select id from locked))
    returning ${runColumns}, locked.before = 'running' as was_running`

/** Cancels live runs with their descendants. Repeat until it returns none, since runs may be started concurrently. */
export const cancelTrees = (db: Queryable, roots: Fragment): Promise<readonly CancelledRun[]> =>
  db.any(cancelledRow`with ${lockedTree(roots)} ${cancelUpdate}`)

/** Cancels live runs. */
export const cancelRuns = (db: Queryable, ids: readonly string[]): Promise<readonly CancelledRun[]> =>
  db.any(cancelledRow`with ${lockedRuns(ids)} ${cancelUpdate}`)

const pauseUpdate = (reason: string | null): Fragment => sql.fragment`
    update orchestration_runs t set revision = t.revision + 1, updated_at = now(),
      pause_reason = case when t.pause_requested_at is null then ${reason} else t.pause_reason end,
      pause_requested_at = coalesce(t.pause_requested_at, now())
    from locked where t.id = locked.id and t.id = any(array(select id from locked)) returning t.id, t.project_id`

/** Pauses live runs with their descendants; earlier pauses remain. */
export const pauseTrees = (db: Queryable, roots: Fragment, reason: string | null): Promise<readonly RunRef[]> =>
  db.any(runRefRow`with ${lockedTree(roots)} ${pauseUpdate(reason)}`)

/** Pauses live runs; earlier pauses remain. */
export const pauseRuns = (db: Queryable, ids: readonly string[], reason: string | null): Promise<readonly RunRef[]> =>
  db.any(runRefRow`with ${lockedRuns(ids)} ${pauseUpdate(reason)}`)

const NestedRun = z.strictObject({ id: z.string(), execution_id: z.string(), index: z.int(), below: z.int() })
const nestedRow = sql.type(NestedRun)
const ListedRun = NestedRun.pick({ id: true, below: true })
/** A run of a page, with the number of live runs below it, at most one more than MAX_TREE. */
export type ListedRun = z.output<typeof ListedRun>
const listedRow = sql.type(ListedRun)

/** Number of runs below a run of a page that are counted, and cancelled in the transaction of the page. */
export const MAX_TREE = 100

/** SQL expression of the number of live runs below a run, counted up to one more than MAX_TREE. By orchestration_runs_parent. */
const below = sql.fragment`(
      with recursive ${liveTree(sql.fragment`r.parent_id = page.id`)}
      select count(*)::integer from (select from tree limit ${MAX_TREE + 1}) as t) as below`

/** Lists live runs that a run, or one node execution of it, started, after a cursor. By orchestration_runs_parent. */
export const listNestedRuns = (
  db: Queryable,
  { run_id, execution_id, after }: Pick<DescendantsMessage, 'run_id' | 'execution_id' | 'after'>,
  limit: number,
) =>
  db.any(nestedRow`
    select page.id, page.parent_execution_id as execution_id, page.parent_index as index, ${below} from (
    select r.id, r.parent_execution_id, r.parent_index
    from orchestration_runs r
    where r.parent_id = ${run_id} and (${execution_id}::text is null or r.parent_execution_id = ${execution_id})
      and r.status in ${LIVE}
      and (r.parent_execution_id, r.parent_index) > (${after?.execution_id ?? ''}, ${after?.index ?? -1})
    order by r.parent_execution_id, r.parent_index limit ${limit}) as page order by 2, 3`)

/** Lists live runs of an orchestration. By orchestration_runs_live. */
export const listLiveRunsOf = (
  db: Queryable,
  { orchestration_id, project_id }: { orchestration_id: string; project_id: string },
  limit: number,
) =>
  db.any(listedRow`
    select page.id, ${below} from (
    select r.id from orchestration_runs r
    where r.project_id = ${project_id} and r.status in ${LIVE} and r.orchestration_id = ${orchestration_id}
    order by r.id limit ${limit}) as page order by 1`)

/** Whether a project has live runs that are about to be cancelled. By orchestration_runs_live. */
export const hasRunsToCancel = (db: Queryable, projectId: string): Promise<boolean> =>
  db.exists(idStatement`
    select r.id from orchestration_runs r
    where r.project_id = ${projectId} and r.status in ${LIVE} and ${isStopping('r')} limit 1`)

/** Whether an orchestration has more than `limit` runs in any status. By orchestration_runs_orchestration. */
export const hasMoreRuns = (db: Queryable, orchestrationId: string, limit: number): Promise<boolean> =>
  db.exists(idStatement`
    select id from orchestration_runs where orchestration_id = ${orchestrationId} offset ${limit} limit 1`)

/**
 * Deletes runs of an orchestration with their descendants. Returns the number of runs of the orchestration itself. By
 * orchestration_runs_orchestration.
 */
export const deleteRunsOf = async (db: Queryable, orchestrationId: string, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from orchestration_runs where id = any (array(
        select id from orchestration_runs where orchestration_id = ${orchestrationId} order by created_at, id limit ${limit}))`)
  ).rowCount
