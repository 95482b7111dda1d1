import type { Counts, ErasedBy } from '../../../control/retention/erasure.ts'
import {
  type ExpiringProject,
  inPages,
  retentionSweep,
  sweepProjects,
  togetherOrApart,
} from '../../../control/retention/expire.ts'
import { newId } from '../../../core/api/ids.ts'
import { srn } from '../../../core/api/kind.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { Services } from '../../../core/process/services.ts'
import { traceKind } from '../traces/kind.ts'
import { purgeTraces } from './purge.ts'
import { listExpiredRoots, type TraceRoot } from './purge-store.ts'

/** Erases content after the retention of its project (`trace_content_retention_days`). */

export const RETENTION: ErasedBy = { type: 'system', id: 'retention_sweep' }

/** Traces of one transaction. */
const BATCH = 100

export const { handler: contentSweepHandler, schedule: contentSweepSchedule } = retentionSweep(
  'content.expire',
  (services, stopping) => expireContent(services, stopping),
)

/**
 * Erases the content of traces that exceed the retention of their projects. Concurrent runs are harmless: each trace is
 * erased once, under its lock.
 * @param most traces per project in one run, in steps of `BATCH`
 */
export const expireContent = (services: Services, stopping: AbortSignal, most?: number): Promise<void> =>
  sweepProjects(services, stopping, {
    days: 'trace_content_retention_days',
    done: 'expired trace content erased',
    sweep: project => expireProject(services, project, { stopping, most }),
  })

async function expireProject(
  services: Services,
  { id: projectId, cutoff }: ExpiringProject,
  { stopping, most }: { stopping: AbortSignal; most?: number },
): Promise<Counts> {
  const { pool } = services
  const done = { traces: 0, skipped: 0 }
  const find = (after: TraceRoot | null) => listExpiredRoots(pool, projectId, cutoff, after, BATCH)
  await inPages(stopping, { size: BATCH, most, find }, async roots => {
    const ids = roots.map(({ id }) => id)
    const purged = await togetherOrApart(services, ids, async (tx, some) => {
      const { traces } = await purgeTraces(tx, services, projectId, some, RETENTION)
      // Another sweep may have erased some of them.
      const erased = traces.filter(({ id }) => some.includes(id))
      for (const { id } of erased) auditPurge(tx, services, projectId, id)
      return erased.length
    })
    const traces = purged.reduce((sum, count) => sum + count, 0)
    done.traces += traces
    done.skipped += ids.length - traces
    await injectFault(services, 'content_expired')
  })
  return done
}

const auditPurge = (tx: Tx, { clock }: Services, projectId: string, id: string): void =>
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
