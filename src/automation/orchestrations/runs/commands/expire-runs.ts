import { z } from 'zod'
import type { Counts } from '#control/retention/erasure.ts'
import {
  auditExpiry,
  type ExpiringProject,
  expirePages,
  retentionSweep,
  sweepProjects,
} from '#control/retention/expire.ts'
import { requireNoLegalHold } from '#control/retention/legal-hold.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { LIVE } from '../model.ts'

/** Deletes ended runs after the retention of their project (`run_retention_days`). */

export const EXPIRE_RUNS = 'orchestrations:ExpireRuns'

/** Trees of runs of one page. */
const PAGE = 100
/** Runs of one transaction, by which a page is split; a tree is never split. */
const RUNS_PER_TRANSACTION = 500

export const { handler: runExpiryHandler, schedule: runExpirySchedule } = retentionSweep(
  'orchestration.run.expiry',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      setting: 'run_retention_days',
      done: 'expired runs deleted',
      sweep: project => expireProject(services, project, stopping),
      expired: project => sql.fragment`select from orchestration_runs t where ${isExpired(project)}`,
    }),
)

const expireProject = (services: Services, project: ExpiringProject, stopping: AbortSignal) =>
  expirePages<ExpiredRun>(
    services,
    stopping,
    {
      size: PAGE,
      find: after => listExpiredRuns(services.pool, project, after, PAGE),
      sizeOf: ({ runs }) => runs,
      most: RUNS_PER_TRANSACTION,
      fault: 'runs_expired',
    },
    (tx, ids) => deleteExpired(tx, services, project, ids),
  )

/** Deletes trees of runs with their node executions. */
async function deleteExpired(
  tx: Tx,
  services: Services,
  project: ExpiringProject,
  ids: readonly string[],
): Promise<Counts> {
  await requireNoLegalHold(tx, project.id)
  const counts = await deleteTrees(tx, project, ids)
  if (counts.runs === 0) return {}
  auditExpiry(tx, services, project, EXPIRE_RUNS, counts)
  return counts
}

const ExpiredRun = z.object({ id: z.string(), created_at: z.string(), runs: z.int() })
type ExpiredRun = z.output<typeof ExpiredRun>

/**
 * Condition of the root runs `t` of a project that ended before the cutoff, with all their descendants and every run
 * that retries one of them: an erasure of a turn finds its copies in retries through the retried run. Runs of a driver
 * belong to its records. By orchestration_runs_project, _root and _retry.
 */
const isExpired = ({ id, cutoff }: ExpiringProject): Fragment => sql.fragment`
  t.project_id = ${id} and t.created_at < ${cutoff}::timestamptz and t.completed_at < ${cutoff}::timestamptz
  and t.parent_id is null and t.driver is null and t.status not in ${LIVE}
  and not exists (
    with recursive chain as (
      select r.id, r.status, r.completed_at from orchestration_runs r where r.root_id = t.id
      union
      select r.id, r.status, r.completed_at from chain c join orchestration_runs r on r.retry_of_run_id = c.id)
    select from chain c where c.status in ${LIVE} or c.completed_at >= ${cutoff}::timestamptz)`

/** Returns the next trees of a project that can be deleted, oldest first. */
const listExpiredRuns = (
  db: Queryable,
  project: ExpiringProject,
  after: ExpiredRun | null,
  limit: number,
): Promise<readonly ExpiredRun[]> =>
  db.any(sql.type(ExpiredRun)`
    select t.id, t.created_at, (select count(*) from orchestration_runs r where r.root_id = t.id) as runs
    from orchestration_runs t
    where ${isExpired(project)}
      ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by t.created_at, t.id limit ${limit}`)

const Deleted = z.object({ runs: z.int(), node_executions: z.int() })

/** Deletes the trees that can still be deleted; locked ones are left to the next sweep. */
async function deleteTrees(tx: Queryable, project: ExpiringProject, ids: readonly string[]): Promise<Counts> {
  const some = sql.array([...ids], 'text')
  await tx.query(voidStatement`
    select from orchestration_runs where id = any(${some}) order by id for update skip locked`)
  // A separate statement after the locks, so that retries started meanwhile are visible.
  const { runs, node_executions } = await tx.one(sql.type(Deleted)`
    with roots as materialized (
      select t.id from orchestration_runs t where t.id = any(${some}) and ${isExpired(project)} order by t.id
      for update skip locked),
    nodes as (
      delete from orchestration_node_executions e using orchestration_runs r
      where e.run_id = r.id and r.root_id in (select id from roots) returning 1),
    runs as (
      delete from orchestration_runs r where r.root_id in (select id from roots) returning 1)
    select (select count(*) from runs) as runs, (select count(*) from nodes) as node_executions`)
  return { runs, node_executions }
}
