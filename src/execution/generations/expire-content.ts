import { z } from 'zod'
import type { ErasedBy } from '../../control/retention/content.ts'
import { AppError } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import type { Tx } from '../../core/db/write.ts'
import { every, handler } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import { purgeTraces } from './purge.ts'
import { expiredRoots, expiringProjects, type Root } from './purge-store.ts'
import { traceKind } from './trace-kind.ts'

/** The end of content by the retention of its project (`trace_content_retention_days`). */

const BY: ErasedBy = { type: 'system', id: 'retention_sweep' }

/** Traces of a transaction. */
const BATCH = 100
/** Traces of a project at one time: what is more waits for the next. */
export const MOST = 10_000
const PROJECTS = 200

const contentSweep = workQueue('content.sweep', {
  message: z.object({}),
  concern: 'snapshot',
  retry: { limit: 5, delaySeconds: 30, backoff: true, maxDelaySeconds: 1800 },
})

export const contentSweepHandler = handler(contentSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
  expireContent(services, stopping),
)

export const contentSweepSchedule = every(
  'content.sweep',
  ({ CONTENT_RETENTION_SWEEP_DISABLED: disabled, CONTENT_RETENTION_SWEEP_INTERVAL_MS: ms }) =>
    disabled ? 0 : Math.ceil(ms / 1000),
  contentSweep,
  {},
)

/**
 * Erases the content of traces that are older than the retention of their projects. A second one at the same time does no
 * harm: each trace is erased under its lock, once.
 * @param most traces of a project at one time, in steps of `BATCH`
 */
export async function expireContent(services: Services, stopping: AbortSignal, most = MOST): Promise<void> {
  const { pool, clock, log } = services
  for (let after = ''; !stopping.aborted; ) {
    const projects = await expiringProjects(pool, clock.now(), after, PROJECTS)
    for (const project of projects) {
      const started = performance.now()
      try {
        const done = await expireProject(services, project, { stopping, most })
        const ms = Math.round(performance.now() - started)
        if (done.traces > 0 || done.skipped > 0)
          log.info({ project_id: project.id, ...done, ms }, 'content past its retention erased')
      } catch (error) {
        log.error({ err: error, project_id: project.id }, 'content past its retention not erased')
      }
      if (stopping.aborted) return
    }
    if (projects.length < PROJECTS) return
    after = projects[projects.length - 1].id
  }
}

async function expireProject(
  services: Services,
  { id: projectId, cutoff }: { id: string; cutoff: string },
  { stopping, most }: { stopping: AbortSignal; most: number },
): Promise<{ traces: number; skipped: number }> {
  const done = { traces: 0, skipped: 0 }
  let after: Root | null = null
  for (let seen = 0; seen < most && !stopping.aborted; seen += BATCH) {
    const roots: readonly Root[] = await expiredRoots(services.pool, projectId, cutoff, after, BATCH)
    if (roots.length === 0) break
    const ids = roots.map(({ id }) => id)
    const purged = await expireTogether(services, projectId, ids)
    done.traces += purged
    done.skipped += ids.length - purged
    await fault(services, 'content_expired')
    if (roots.length < BATCH) break
    after = roots[roots.length - 1]
  }
  return done
}

/** Erases traces in one transaction; where one of them refuses, each in its own. Returns how many were erased. */
async function expireTogether(services: Services, projectId: string, ids: readonly string[]): Promise<number> {
  try {
    return await services.write(async tx => {
      const { traces } = await purgeTraces(tx, services, projectId, ids, BY)
      // Another sweep may have been first.
      const roots = traces.filter(({ id }) => ids.includes(id))
      for (const { id } of roots) audit(tx, services, projectId, id)
      return roots.length
    })
  } catch (error) {
    if (error instanceof AppError && error.code === 'CONTENT_ON_HOLD') throw error
    if (ids.length > 1) {
      let purged = 0
      for (const id of ids) purged += await expireTogether(services, projectId, [id])
      return purged
    }
    if (error instanceof AppError && error.status < 500) return 0
    services.log.error({ err: error, trace_id: ids[0] }, 'content of a trace not erased')
    return 0
  }
}

const audit = (tx: Tx, { clock }: Services, projectId: string, id: string): void =>
  tx.audit({
    id: newId('audit'),
    project_id: projectId,
    principal_type: null,
    principal_id: null,
    action: 'traces:PurgeTraceContent',
    resource_srn: srn(projectId, traceKind.name, id),
    resource_public_id: id,
    status: 200,
    request_id: null,
    ip: null,
    user_agent: null,
    detail: { kind: 'retention_sweep' },
    created_at: clock.now().toISOString(),
  })
