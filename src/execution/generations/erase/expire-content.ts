import type { ErasedBy } from '#control/retention/erasure.ts'
import {
  type ExpiringProject,
  inPages,
  retentionSweep,
  sweepProjects,
  togetherOrApart,
} from '#control/retention/expire.ts'
import { srn } from '#core/api/kind.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { traceKind } from '../traces/kind.ts'
import { purgeTraces } from './purge.ts'
import { hasExpiredContent, listRoots, type TraceRoot } from './purge-store.ts'

/** Erases content after the retention of its project (`trace_content_retention_days`). */

export const RETENTION: ErasedBy = { type: 'system', id: 'retention_sweep' }

/** Traces of one transaction. */
const BATCH = 100

export const { handler: contentSweepHandler, schedule: contentSweepSchedule } = retentionSweep(
  'content.expire',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      setting: 'trace_content_retention_days',
      done: 'expired trace content erased',
      sweep: project => expireProject(services, project, stopping),
      expired: project => sql.fragment`select from traces t where ${hasExpiredContent(project)}`,
    }),
)

/**
 * Erases the content of expired traces of a project, page by page. Concurrent runs are harmless: each trace is erased
 * once, under its lock.
 */
function expireProject(services: Services, project: ExpiringProject, stopping: AbortSignal) {
  const find = (after: TraceRoot | null) => listRoots(services.pool, hasExpiredContent(project), after, BATCH)
  return inPages(stopping, { size: BATCH, find }, async roots => {
    const ids = roots.map(({ id }) => id)
    const purged = await togetherOrApart(services, ids, async (tx, some) => {
      const { traces } = await purgeTraces(tx, services, project.id, some, RETENTION)
      // Another sweep may have erased some of them.
      const erased = traces.filter(({ id }) => some.includes(id))
      for (const { id } of erased) auditPurge(tx, services, project.id, id)
      return erased.length
    })
    const traces = purged.reduce((sum, count) => sum + count, 0)
    await injectFault(services, 'content_expired')
    return { traces, skipped: ids.length - traces }
  })
}

const auditPurge = (tx: Tx, { clock }: Services, projectId: string, id: string): void =>
  tx.audit(
    newAuditEntry({
      project_id: projectId,
      action: 'traces:PurgeTraceContent',
      resource_srn: srn(projectId, traceKind.name, id),
      resource_public_id: id,
      detail: { kind: 'retention_sweep' },
      created_at: clock.now().toISOString(),
    }),
  )
