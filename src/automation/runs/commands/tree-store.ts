import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../../core/db/sql.ts'
import { isStopping, LIVE, type RunRow, RunRow as RunShape } from '../model.ts'
import type { DescendantsMessage } from '../queue.ts'
import { RunRef, runColumns } from '../store.ts'

/** Trees of runs: a run with its descendants. */

const runRefRow = sql.type(RunRef)
const runRow = sql.type(RunShape)

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

/** Returns the CTE `tree` of the live runs of trees. By orchestration_runs_parent. */
const liveTree = (roots: Fragment): Fragment => sql.fragment`
    tree as (
      select r.id from orchestration_runs r where ${roots} and r.status in ${LIVE}
      union
      select r.id from tree join orchestration_runs r on r.parent_id = tree.id where r.status in ${LIVE})`

/**
 * Returns the CTE `locked` of the live runs of trees, locked parents first. Misses runs that one of them starts
 * concurrently.
 */
const lockedTree = (roots: Fragment): Fragment => sql.fragment`
    recursive ${liveTree(roots)},
    locked as (
      select r.id from tree join orchestration_runs r on r.id = tree.id
      where r.status in ${LIVE} order by r.run_depth, r.id for update of r)`

/** Returns the CTE `locked` of live runs of the same depth. */
const lockedRuns = (ids: readonly string[]): Fragment => sql.fragment`
    locked as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and status in ${LIVE} order by id for update)`

/** Whether trees have more than `limit` live runs. Reads no more than that. */
export const hasMoreLiveRuns = (db: Queryable, roots: Fragment, limit: number): Promise<boolean> =>
  db.exists(idStatement`with recursive ${liveTree(roots)} select id from tree offset ${limit} limit 1`)

const cancelUpdate = sql.fragment`
    update orchestration_runs t set status = 'cancelled', revision = t.revision + 1, active_nodes = '{}', required_actions = '[]',
      context = null, wake_at = null, due_at = null, queued_at = null, completed_at = now(), updated_at = now()
    from locked where t.id = locked.id returning ${runColumns}`

/** Cancels live runs with their descendants. Repeat until it returns none, since runs may be started concurrently. */
export const cancelTrees = (db: Queryable, roots: Fragment): Promise<readonly RunRow[]> =>
  db.any(runRow`with ${lockedTree(roots)} ${cancelUpdate}`)

/** Cancels live runs. */
export const cancelRuns = (db: Queryable, ids: readonly string[]): Promise<readonly RunRow[]> =>
  db.any(runRow`with ${lockedRuns(ids)} ${cancelUpdate}`)

const pauseUpdate = (reason: string | null): Fragment => sql.fragment`
    update orchestration_runs t set revision = t.revision + 1, updated_at = now(),
      pause_reason = case when t.pause_requested_at is null then ${reason} else t.pause_reason end,
      pause_requested_at = coalesce(t.pause_requested_at, now())
    from locked where t.id = locked.id returning t.id, t.project_id`

/** Pauses live runs with their descendants; earlier pauses remain. */
export const pauseTrees = (db: Queryable, roots: Fragment, reason: string | null): Promise<readonly RunRef[]> =>
  db.any(runRefRow`with ${lockedTree(roots)} ${pauseUpdate(reason)}`)

/** Pauses live runs; earlier pauses remain. */
export const pauseRuns = (db: Queryable, ids: readonly string[], reason: string | null): Promise<readonly RunRef[]> =>
  db.any(runRefRow`with ${lockedRuns(ids)} ${pauseUpdate(reason)}`)

const NestedRun = z.strictObject({ id: z.string(), execution_id: z.string(), index: z.int(), is_parent: z.boolean() })
const nestedRow = sql.type(NestedRun)
const ListedRun = NestedRun.pick({ id: true, is_parent: true })
/** A cancelled or paused run, and whether it may have nested runs. */
export type ListedRun = z.output<typeof ListedRun>
const listedRow = sql.type(ListedRun)

/** SQL expression whether a run has nested runs. By orchestration_runs_parent. */
const isParent = sql.fragment`exists (select from orchestration_runs c where c.parent_id = r.id) as is_parent`

/** Lists live runs that a run, or one node execution of it, started, after a cursor. By orchestration_runs_parent. */
export const listNestedRuns = (
  db: Queryable,
  { run_id, execution_id, after }: Pick<DescendantsMessage, 'run_id' | 'execution_id' | 'after'>,
  limit: number,
) =>
  db.any(nestedRow`
    select r.id, r.parent_execution_id as execution_id, r.parent_index as index, ${isParent}
    from orchestration_runs r
    where ${runsStartedBy([run_id], execution_id)} and r.status in ${LIVE}
      and (r.parent_execution_id, r.parent_index) > (${after?.execution_id ?? ''}, ${after?.index ?? -1})
    order by r.parent_execution_id, r.parent_index limit ${limit}`)

/** Lists live runs of an orchestration. By orchestration_runs_live. */
export const listLiveRunsOf = (
  db: Queryable,
  { orchestration_id, project_id }: { orchestration_id: string; project_id: string },
  limit: number,
) =>
  db.any(listedRow`
    select r.id, ${isParent} from orchestration_runs r
    where r.project_id = ${project_id} and r.status in ${LIVE} and r.orchestration_id = ${orchestration_id}
    order by r.id limit ${limit}`)

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
