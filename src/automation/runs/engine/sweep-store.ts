import { z } from 'zod'
import { type Queryable, sql } from '../../../core/db/sql.ts'
import { isStopping, LIVE } from '../model.ts'
import { NamedRun } from '../store.ts'
import { WORKER_EXECUTED } from './node-execution-store.ts'

const named = sql.type(NamedRun)

/** What the floor under the wake-ups of runs looks for. */

const due = sql.type(z.strictObject({ id: z.string(), project_id: z.string(), due_at: z.string() }))

/** Runs whose time comes within so many seconds, the first first. By orchestration_runs_due. */
export const dueRuns = (db: Queryable, withinSeconds: number, limit: number) =>
  db.any(due`
    select id, project_id, due_at from orchestration_runs
    where due_at < now() + ${withinSeconds} * interval '1 s' order by due_at limit ${limit}`)

const lostExecution = sql.type(z.strictObject({ id: z.string(), run_id: z.string(), project_id: z.string() }))

/** Attempts whose lease is over. By orchestration_node_executions_leased. */
export const listExpiredNodes = (db: Queryable, limit: number) =>
  db.any(lostExecution`
    select id, run_id, project_id from orchestration_node_executions
    where leased_until < now() order by leased_until limit ${limit}`)

/** Attempts that nobody took although their run has been quiet for a while. By orchestration_runs_live. */
export const listUnclaimedNodes = (db: Queryable, quietSeconds: number, limit: number) =>
  db.any(lostExecution`
    select e.id, e.run_id, e.project_id from orchestration_runs r join orchestration_node_executions e on e.run_id = r.id
    where r.status = 'running' and r.updated_at < now() - ${quietSeconds} * interval '1 s'
      and not e.applied and e.status = 'running' and e.leased_until is null
      and e.node_type in ${WORKER_EXECUTED}
    order by e.created_at limit ${limit}`)

/** Trees of a project that are woken beyond the room that it has: the first of them may not be able to go on. */
const SPARE = 10

/**
 * Runs that have room, or need none, or are to be stopped, and have been left queued: of a project of which many wait for room only those of the
 * trees that would get it. Running trees are counted once a project. By orchestration_runs_live.
 */
export const listStaleQueuedRuns = (db: Queryable, quietSeconds: number, limit: number): Promise<readonly NamedRun[]> =>
  db.any(named`
    with quiet as materialized (
      select id, project_id, root_id, queued_at, ${isStopping('r')} as stopping, min(queued_at) over (partition by root_id) as waits_since
      from orchestration_runs r
      where status = 'queued' and updated_at < now() - ${quietSeconds} * interval '1 s'),
    running as materialized (
      select distinct project_id, root_id from orchestration_runs
      where status = 'running' and project_id in (select project_id from quiet)),
    room as materialized (
      select p.id, p.max_concurrent_runs - (select count(*) from running o where o.project_id = p.id) as trees
      from projects p where p.id in (select project_id from quiet)),
    placed as (
      select q.*, room.trees, dense_rank() over (partition by q.project_id order by q.waits_since, q.root_id) as place
      from quiet q join room on room.id = q.project_id
      where room.trees is null or room.trees > 0)
    select id, project_id from (
      select id, project_id, queued_at from placed where trees is null or place <= trees + ${SPARE}
      union
      select id, project_id, queued_at from quiet where stopping
      union
      select q.id, q.project_id, q.queued_at from quiet q join running o on o.root_id = q.root_id) as woken
    order by queued_at limit ${limit}`)

/** That a run is to be stopped, or something has happened of which it has taken no note. By the primary keys of what runs wait for. */
export const uncollectedCondition = sql.fragment`(
        ${isStopping('r')} or r.status = 'running' and not exists (
          select from orchestration_node_executions e where e.run_id = r.id and not e.applied and e.status = 'running')
        or exists (
          select from orchestration_node_executions e
          where e.run_id = r.id and not e.applied and (
            e.status = 'completed'
            or e.generation_id is not null and e.status in ('running', 'requires_action') and not exists (
              select from generations g where g.id = e.generation_id and g.status in ('pending', 'in_progress', 'requires_action'))
            or e.approval_id is not null and e.status = 'requires_action' and not exists (
              select from approvals a where a.id = e.approval_id and a.status = 'pending')
            or e.decision_id is not null and e.status = 'running' and not exists (
              select from decisions d where d.id = e.decision_id and d.status in ('queued', 'running'))
            or e.node_type in ('loop', 'sub_orchestration') and e.status = 'running' and not exists (
              select from orchestration_runs c
              where c.parent_id = r.id and c.parent_execution_id = e.id
                and c.status in ${LIVE}))))`

/**
 * Runs that run although something has happened that they have not taken note of, for a while. By orchestration_runs_live and
 * the primary keys of what they wait for.
 */
export const listStaleRunningRuns = (
  db: Queryable,
  quietSeconds: number,
  limit: number,
): Promise<readonly NamedRun[]> =>
  db.any(named`
    select r.id, r.project_id from orchestration_runs r
    where r.status = 'running' and r.updated_at < now() - ${quietSeconds} * interval '1 s' and ${uncollectedCondition}
    order by r.updated_at limit ${limit}`)

const page = sql.type(z.strictObject({ last: z.string().nullable(), left: z.array(NamedRun) }))

/**
 * The same of runs that wait, of which there may be many: of a page behind an id. `last` is the id to go on behind, null where
 * none are left. By orchestration_runs_waiting and the primary keys of what they wait for.
 */
export const listStaleWaitingRuns = (
  db: Queryable,
  { quietSeconds, after, limit }: { quietSeconds: number; after: string; limit: number },
) =>
  db.one(page`
    with looked as materialized (
      select id from orchestration_runs
      where status in ('sleeping', 'awaiting_input') and id > ${after} order by id limit ${limit})
    select
      (select case when count(*) = ${limit} then max(id) end from looked) as last,
      (select coalesce(json_agg(json_build_object('id', r.id, 'project_id', r.project_id)), '[]')
        from orchestration_runs r
        where r.id in (select id from looked) and r.updated_at < now() - ${quietSeconds} * interval '1 s'
          and ${uncollectedCondition}) as "left"`)
