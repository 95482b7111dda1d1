import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql } from '#core/db/sql.ts'
import { WORKER_EXECUTED } from '../engine/node-execution-store.ts'

const ProjectQueue = z.strictObject({
  project_id: z.string(),
  queued: z.int(),
  claimed: z.int(),
  oldest_seconds: z.number().nullable(),
})
export type ProjectQueue = z.output<typeof ProjectQueue>
const queueRow = sql.type(ProjectQueue)

/**
 * Counts queued and claimed work by project. A queued run is not counted if a queued nested run is its only ready work.
 * By orchestration_runs_live, orchestration_runs_parent, orchestration_node_executions_run and _leased.
 */
export const countWorkByProject = (db: Queryable, projectId: string | null): Promise<readonly ProjectQueue[]> =>
  db.any(queueRow`
    select project_id, count(*) filter (where not held) as queued, count(*) filter (where held) as claimed,
      extract(epoch from now() - min(since) filter (where not held))::float8 as oldest_seconds
    from (
      select r.project_id, false as held, r.queued_at as since from orchestration_runs r
      where r.status = 'queued' and (${projectId}::text is null or r.project_id = ${projectId})
        and not exists (select from orchestration_runs c where c.parent_id = r.id and c.status = 'queued')
      union all
      select e.project_id, false, greatest(e.created_at, e.started_at)
      from orchestration_runs r join orchestration_node_executions e on e.run_id = r.id
      where r.status = 'running' and (${projectId}::text is null or r.project_id = ${projectId})
        and e.status = 'running' and not e.applied and e.node_type in ${WORKER_EXECUTED}
        and (e.leased_until is null or e.leased_until <= now())
      union all
      select e.project_id, true, null from orchestration_node_executions e
      where e.leased_until > now() and (${projectId}::text is null or e.project_id = ${projectId})) work
    group by project_id order by project_id`)

/** SQL expression of the time since when the oldest unclaimed node execution is ready. Indexes as above. */
export const oldestReadyAttempt: Fragment = sql.fragment`(
  select min(greatest(e.created_at, e.started_at, e.leased_until))
  from orchestration_runs r join orchestration_node_executions e on e.run_id = r.id
  where r.status = 'running' and e.status = 'running' and not e.applied and e.node_type in ${WORKER_EXECUTED}
    and (e.leased_until is null or e.leased_until <= now()))`

/** Lists the IDs of all projects. */
export const listProjectIds = (db: Queryable): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select id from projects`)

const latencyRow = sql.type(z.strictObject({ p50: z.number().nullable(), p95: z.number().nullable() }))

/**
 * Returns a select of the waits in milliseconds of node executions for a worker, for executions claimed within the window and
 * ready on creation; others waited for more than a worker. By orchestration_node_executions_started.
 */
const recentWaits = (projects: readonly string[] | null, windowSeconds: number): Fragment => sql.fragment`
      select greatest(0, extract(epoch from started_at - created_at) * 1000)::float8 as waited
      from orchestration_node_executions
      where started_at > now() - ${windowSeconds} * interval '1 s' and deliveries > 0 and attempt = 1 and not parked
        and node_type in ${WORKER_EXECUTED}
        and (${projects === null} or project_id = any(${sql.array([...(projects ?? [])], 'text')}))`

const percentiles = (db: Queryable, waits: Fragment) =>
  db.one(latencyRow`
    select percentile_cont(0.5) within group (order by waited) as p50, percentile_cont(0.95) within group (order by waited) as p95
    from (${waits}) recent`)

/** Returns percentiles of the recent waits of node executions for a worker. */
export const measureClaimLatency = (db: Queryable, projects: readonly string[] | null, windowSeconds: number) =>
  percentiles(db, recentWaits(projects, windowSeconds))

const waitsRow = sql.type(z.strictObject({ waits: z.array(z.number()) }))

/** Lists the recent waits of node executions for a worker, for `claimLatencyOf`. */
export const listClaimWaits = (
  db: Queryable,
  projects: readonly string[] | null,
  windowSeconds: number,
): Promise<readonly number[]> =>
  db.oneFirst(waitsRow`
    select coalesce(json_agg(waited), '[]') as waits from (${recentWaits(projects, windowSeconds)}) recent`)

/** Returns percentiles of waits that several cells have listed. */
export const claimLatencyOf = (db: Queryable, waits: readonly number[]) =>
  percentiles(db, sql.fragment`select waited from unnest(${sql.array([...waits], 'float8')}) w (waited)`)
