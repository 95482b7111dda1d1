import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../../core/db/sql.ts'
import { isStopping, LIVE, type RunRow, RunRow as RunShape } from '../model.ts'
import type { BelowMessage } from '../queue.ts'
import { NamedRun, runColumns } from '../store.ts'

/** Trees of runs: a run with those that its nodes started, and those below them. */

const named = sql.type(NamedRun)
const stopped = sql.type(RunShape)

/** Runs that some others started, or one attempt of a node of them, as the roots of trees. By orchestration_runs_parent. */
export const rootsBelow = (runIds: readonly string[], executionId: string | null = null): Fragment =>
  sql.fragment`r.parent_id = any(${sql.array([...runIds], 'text')})
      and (${executionId}::text is null or r.parent_execution_id = ${executionId})`

/** Runs of an orchestration, as the roots of trees. By orchestration_runs_orchestration. */
export const rootsOf = (orchestrationId: string): Fragment => sql.fragment`r.orchestration_id = ${orchestrationId}`

/** The cte `tree` of what has not ended of trees of runs. By orchestration_runs_parent. */
const liveTree = (roots: Fragment): Fragment => sql.fragment`
    tree as (
      select r.id from orchestration_runs r where ${roots} and r.status in ${LIVE}
      union
      select r.id from tree join orchestration_runs r on r.parent_id = tree.id where r.status in ${LIVE})`

/**
 * The same under its locks: `held`, where parents are locked before what is below them. A run that one of them starts
 * meanwhile is missed.
 */
const heldTree = (roots: Fragment): Fragment => sql.fragment`
    recursive ${liveTree(roots)},
    held as (
      select r.id from tree join orchestration_runs r on r.id = tree.id
      where r.status in ${LIVE} order by r.run_depth, r.id for update of r)`

/** Some runs of one depth that have not ended, under their locks. */
const heldRuns = (ids: readonly string[]): Fragment => sql.fragment`
    held as (
      select id from orchestration_runs
      where id = any(${sql.array([...ids], 'text')}) and status in ${LIVE} order by id for update)`

/** Whether more than so many runs of some trees have not ended. Reads no more of them. */
export const isLarger = (db: Queryable, roots: Fragment, most: number): Promise<boolean> =>
  db.exists(idStatement`with recursive ${liveTree(roots)} select id from tree offset ${most} limit 1`)

const cancelled = sql.fragment`
    update orchestration_runs t set status = 'cancelled', revision = t.revision + 1, active_nodes = '{}', required_actions = '[]',
      context = null, wake_at = null, due_at = null, queued_at = null, completed_at = now(), updated_at = now()
    from held where t.id = held.id returning ${runColumns}`

/** Ends runs that have not ended, with all that are below them. Ask again until there is none. */
export const cancelTrees = (db: Queryable, roots: Fragment): Promise<readonly RunRow[]> =>
  db.any(stopped`with ${heldTree(roots)} ${cancelled}`)

/** Ends runs that have not ended. */
export const cancelRuns = (db: Queryable, ids: readonly string[]): Promise<readonly RunRow[]> =>
  db.any(stopped`with ${heldRuns(ids)} ${cancelled}`)

const paused = (reason: string | null): Fragment => sql.fragment`
    update orchestration_runs t set revision = t.revision + 1, updated_at = now(),
      pause_reason = case when t.pause_requested_at is null then ${reason} else t.pause_reason end,
      pause_requested_at = coalesce(t.pause_requested_at, now())
    from held where t.id = held.id returning t.id, t.project_id`

/** Pauses runs that have not ended, with all that are below them, unless they are paused already. */
export const pauseTrees = (db: Queryable, roots: Fragment, reason: string | null): Promise<readonly NamedRun[]> =>
  db.any(named`with ${heldTree(roots)} ${paused(reason)}`)

/** Pauses runs that have not ended, unless they are paused already. */
export const pauseRuns = (db: Queryable, ids: readonly string[], reason: string | null): Promise<readonly NamedRun[]> =>
  db.any(named`with ${heldRuns(ids)} ${paused(reason)}`)

const Below = z.strictObject({ id: z.string(), execution_id: z.string(), index: z.int(), is_parent: z.boolean() })
const below = sql.type(Below)
const ListedRun = Below.pick({ id: true, is_parent: true })
/** A run that is stopped or paused, and whether others may have to follow it. */
export type ListedRun = z.output<typeof ListedRun>
const listed = sql.type(ListedRun)

/** Whether a run has started others. By orchestration_runs_parent. */
const isParent = sql.fragment`exists (select from orchestration_runs c where c.parent_id = r.id) as is_parent`

/** Live runs that a run started, or one attempt of a node of it, behind a place. By orchestration_runs_parent. */
export const nextBelow = (
  db: Queryable,
  { run_id, execution_id, after }: Pick<BelowMessage, 'run_id' | 'execution_id' | 'after'>,
  limit: number,
) =>
  db.any(below`
    select r.id, r.parent_execution_id as execution_id, r.parent_index as index, ${isParent}
    from orchestration_runs r
    where ${rootsBelow([run_id], execution_id)} and r.status in ${LIVE}
      and (r.parent_execution_id, r.parent_index) > (${after?.execution_id ?? ''}, ${after?.index ?? -1})
    order by r.parent_execution_id, r.parent_index limit ${limit}`)

/** Live runs of an orchestration. By orchestration_runs_live. */
export const nextRunsOf = (
  db: Queryable,
  { orchestration_id, project_id }: { orchestration_id: string; project_id: string },
  limit: number,
) =>
  db.any(listed`
    select r.id, ${isParent} from orchestration_runs r
    where r.project_id = ${project_id} and r.status in ${LIVE} and r.orchestration_id = ${orchestration_id}
    order by r.id limit ${limit}`)

/** Whether runs of a project are still to be stopped, with others or with an orchestration. By orchestration_runs_live. */
export const hasStopping = (db: Queryable, projectId: string): Promise<boolean> =>
  db.exists(idStatement`
    select r.id from orchestration_runs r
    where r.project_id = ${projectId} and r.status in ${LIVE} and ${isStopping('r')} limit 1`)

/** Whether an orchestration has more runs than so many, whatever has become of them. By orchestration_runs_orchestration. */
export const hasMoreRuns = (db: Queryable, orchestrationId: string, most: number): Promise<boolean> =>
  db.exists(idStatement`
    select id from orchestration_runs where orchestration_id = ${orchestrationId} offset ${most} limit 1`)

/** Deletes runs of an orchestration with all below them. Returns how many of its own. By orchestration_runs_orchestration. */
export const deleteRunsOf = async (db: Queryable, orchestrationId: string, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from orchestration_runs where id = any (array(
        select id from orchestration_runs where orchestration_id = ${orchestrationId} order by created_at, id limit ${limit}))`)
  ).rowCount
