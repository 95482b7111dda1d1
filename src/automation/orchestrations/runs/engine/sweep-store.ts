import { z } from 'zod'
import { type Queryable, sql } from '#core/db/sql.ts'
import { isStopping, LIVE } from '../model.ts'
import { RunRef } from '../store.ts'
import { WORKER_EXECUTED } from './node-execution-store.ts'

const runRefRow = sql.type(RunRef)

const dueRow = sql.type(z.strictObject({ id: z.string(), project_id: z.string(), due_at: z.string() }))

/** Lists runs that are due within a number of seconds, earliest first. By orchestration_runs_due. */
export const listDueRuns = (db: Queryable, withinSeconds: number, limit: number) =>
  db.any(dueRow`
    select id, project_id, due_at from orchestration_runs
    where due_at < now() + ${withinSeconds} * interval '1 s' order by due_at limit ${limit}`)

const executionRefRow = sql.type(z.strictObject({ id: z.string(), run_id: z.string(), project_id: z.string() }))

/** Lists node executions with an expired lease. By orchestration_node_executions_leased. */
export const listExpiredNodes = (db: Queryable, limit: number) =>
  db.any(executionRefRow`
    select id, run_id, project_id from orchestration_node_executions
    where leased_until < now() order by leased_until limit ${limit}`)

/** Lists unclaimed node executions of runs that have not changed for `quietSeconds`. By orchestration_runs_live. */
export const listUnclaimedNodes = (db: Queryable, quietSeconds: number, limit: number) =>
  db.any(executionRefRow`
    select e.id, e.run_id, e.project_id from orchestration_runs r join orchestration_node_executions e on e.run_id = r.id
    where r.status = 'running' and r.updated_at < now() - ${quietSeconds} * interval '1 s'
      and not e.applied and e.status = 'running' and e.leased_until is null
      and e.node_type in ${WORKER_EXECUTED}
    order by e.created_at limit ${limit}`)

/** Trees of a project that are woken in excess of its free run slots: the first trees may be unable to continue. */
const SPARE = 10

/**
 * Lists queued runs that have not changed for `quietSeconds` although they have a run slot, need none, or are to be
 * cancelled. In a project with many waiting runs, only the trees next in line are listed. Running trees are counted
 * once per project. By orchestration_runs_live.
 */
export const listStaleQueuedRuns = (db: Queryable, quietSeconds: number, limit: number): Promise<readonly RunRef[]> =>
  db.any(runRefRow`
    with stale as materialized (
      select id, project_id, root_id, queued_at, ${isStopping('r')} as stopping, min(queued_at) over (partition by root_id) as waits_since
      from orchestration_runs r
      where status = 'queued' and updated_at < now() - ${quietSeconds} * interval '1 s'),
    running as materialized (
      select distinct project_id, root_id from orchestration_runs
      where status = 'running' and project_id in (select project_id from stale)),
    capacity as materialized (
      select p.id, p.max_concurrent_runs - (select count(*) from running o where o.project_id = p.id) as trees
      from projects p where p.id in (select project_id from stale)),
    ranked as (
      select q.*, capacity.trees, dense_rank() over (partition by q.project_id order by q.waits_since, q.root_id) as rank
      from stale q join capacity on capacity.id = q.project_id
      where capacity.trees is null or capacity.trees > 0)
    select id, project_id from (
      select id, project_id, queued_at from ranked where trees is null or rank <= trees + ${SPARE}
      union
      select id, project_id, queued_at from stale where stopping
      union
      select q.id, q.project_id, q.queued_at from stale q join running o on o.root_id = q.root_id) as woken
    order by queued_at limit ${limit}`)

/**
 * SQL condition that a run is to be cancelled, or that an event occurred which no advance has applied. By the primary
 * keys of the rows that runs wait for.
 */
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
 * Lists running runs with an unapplied event that have not changed for `quietSeconds`. By orchestration_runs_live and
 * the primary keys of the rows that they wait for.
 */
export const listStaleRunningRuns = (db: Queryable, quietSeconds: number, limit: number): Promise<readonly RunRef[]> =>
  db.any(runRefRow`
    select r.id, r.project_id from orchestration_runs r
    where r.status = 'running' and r.updated_at < now() - ${quietSeconds} * interval '1 s' and ${uncollectedCondition}
    order by r.updated_at limit ${limit}`)

const staleRow = sql.type(z.strictObject({ last: z.string().nullable(), stale: z.array(RunRef) }))

/**
 * Returns the stale runs among a page of waiting runs after an ID. `last`: the ID after which to continue; null on the
 * last page. By orchestration_runs_waiting and the primary keys of the rows that they wait for.
 */
export const listStaleWaitingRuns = (
  db: Queryable,
  { quietSeconds, after, limit }: { quietSeconds: number; after: string; limit: number },
) =>
  db.one(staleRow`
    with checked as materialized (
      select id from orchestration_runs
      where status in ('sleeping', 'awaiting_input') and id > ${after} order by id limit ${limit})
    select
      (select case when count(*) = ${limit} then max(id) end from checked) as last,
      (select coalesce(json_agg(json_build_object('id', r.id, 'project_id', r.project_id)), '[]')
        from orchestration_runs r
        where r.id in (select id from checked) and r.updated_at < now() - ${quietSeconds} * interval '1 s'
          and ${uncollectedCondition}) as stale`)
