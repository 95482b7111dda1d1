import { z } from 'zod'
import { AppError } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { projectKind } from '../../identity/projects/model.ts'
import type { Counts } from './erasure.ts'

/** Project settings for retention in days. */
type RetentionSetting = 'trace_content_retention_days' | 'trace_retention_days' | 'conversation_retention_days'

/** A project with a retention setting; records older than `cutoff` expire. */
export type ExpiringProject = { id: string; cutoff: string }

const expiringRow = sql.type(z.object({ id: z.string(), cutoff: z.string() }))

/**
 * Lists projects after an id that have the setting and no legal hold. Indexes projects_retention,
 * projects_trace_retention, projects_conversation_retention.
 */
const listExpiringProjects = (db: Queryable, setting: RetentionSetting, at: Date, after: string, limit: number) => {
  const column = sql.identifier([setting])
  return db.any(expiringRow`
    select id, ${at.toISOString()}::timestamptz - least(${column}, 100000) * interval '1 day' as cutoff from projects
    where ${column} is not null and id > ${after} and (content_hold_until is null or content_hold_until <= now())
    order by id limit ${limit}`)
}

/** Returns the handler and the schedule of a sweep for records past the retention of their project. */
export function retentionSweep(name: string, run: (services: Services, stopping: AbortSignal) => Promise<void>) {
  const queue = workQueue(name, {
    message: z.object({}),
    concern: 'snapshot',
    retry: { limit: 5, delaySeconds: 30, backoff: true, maxDelaySeconds: 1800 },
  })
  return {
    handler: handler(queue, { concurrency: 1 }, (_message, { services, stopping }) => run(services, stopping)),
    schedule: schedule(
      name,
      ({ CONTENT_RETENTION_SWEEP_DISABLED: disabled, CONTENT_RETENTION_SWEEP_INTERVAL_MS: ms }) =>
        disabled ? 0 : Math.ceil(ms / 1000),
      queue,
      {},
    ),
  }
}

/** Most records of a project per sweep; the next sweep continues. */
export const MOST = 10_000

/** Processes records page by page until there are no more, `most` records were read, or the worker stops. */
export async function inPages<T>(
  stopping: AbortSignal,
  { size, most = MOST, find }: { size: number; most?: number; find(after: T | null): Promise<readonly T[]> },
  work: (found: readonly T[]) => Promise<void>,
): Promise<void> {
  let after: T | null = null
  for (let seen = 0; seen < most && !stopping.aborted; seen += size) {
    const found: readonly T[] = await find(after)
    if (found.length > 0) await work(found)
    if (found.length < size) return
    after = found[found.length - 1]
  }
}

const PROJECTS = 200

/** Sweeps every project that has the setting. A failure in one project does not stop the others. */
export async function sweepProjects(
  services: Services,
  stopping: AbortSignal,
  task: {
    days: RetentionSetting
    /** Log line for a project in which records were swept. */
    done: string
    sweep(project: ExpiringProject): Promise<Counts>
  },
): Promise<void> {
  const { pool, clock, log } = services
  for (let after = ''; !stopping.aborted; ) {
    const projects: readonly ExpiringProject[] = await listExpiringProjects(
      pool,
      task.days,
      clock.now(),
      after,
      PROJECTS,
    )
    for (const project of projects) {
      const started = performance.now()
      try {
        const counts = await task.sweep(project)
        const ms = Math.round(performance.now() - started)
        if (Object.values(counts).some(count => count > 0))
          log.info({ project_id: project.id, ...counts, ms }, task.done)
      } catch (error) {
        log.error({ err: error, project_id: project.id, setting: task.days }, 'retention sweep failed')
      }
      if (stopping.aborted) return
    }
    if (projects.length < PROJECTS) return
    after = projects[projects.length - 1].id
  }
}

/**
 * Processes several records in one transaction or, when that fails, each record in a separate one. Records that fail
 * alone are skipped. Returns the results of the committed transactions.
 * @throws CONTENT_ON_HOLD when a legal hold began meanwhile
 */
export async function togetherOrApart<T>(
  services: Services,
  ids: readonly string[],
  work: (tx: Tx, ids: readonly string[]) => Promise<T>,
): Promise<T[]> {
  try {
    return [await services.write(tx => work(tx, ids))]
  } catch (error) {
    if (error instanceof AppError && error.code === 'CONTENT_ON_HOLD') throw error
    if (ids.length > 1) {
      const results: T[] = []
      for (const id of ids) results.push(...(await togetherOrApart(services, [id], work)))
      return results
    }
    if (!(error instanceof AppError) || error.status >= 500)
      services.log.error({ err: error, id: ids[0] }, 'expired record skipped')
    return []
  }
}

/** Adds an audit entry for a page of records deleted by retention. */
export function auditExpiry(
  tx: Tx,
  { clock }: Pick<Services, 'clock'>,
  { id, cutoff }: ExpiringProject,
  action: string,
  counts: Counts,
): void {
  tx.audit({
    id: newId('audit'),
    project_id: id,
    principal_type: null,
    principal_id: null,
    action,
    resource_srn: srn(id, projectKind.name, id),
    resource_public_id: id,
    status: 200,
    request_id: null,
    ip: null,
    user_agent: null,
    detail: { kind: 'retention_sweep', before: cutoff, counts },
    created_at: clock.now().toISOString(),
  })
}
