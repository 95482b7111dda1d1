import { type Counts, sumCounts } from '#control/retention/erasure.ts'
import {
  auditExpiry,
  type ExpiringProject,
  inPages,
  retentionSweep,
  sweepProjects,
  togetherOrApart,
} from '#control/retention/expire.ts'
import { raise } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { deleteTraces } from '../traces/store.ts'
import { RETENTION } from './expire-content.ts'
import { purgeTraces } from './purge.ts'
import { deleteTurns, findRetainedTurn, isDeletable, listRoots, listSubtree, type TraceRoot } from './purge-store.ts'

/** Deletes traces and their generations after the retention of their project (`trace_retention_days`). */

export const EXPIRE_TRACES = 'traces:ExpireTraces'

/** Trace trees of one transaction. */
const BATCH = 100

export const { handler: traceSweepHandler, schedule: traceSweepSchedule } = retentionSweep(
  'trace.sweep',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      setting: 'trace_retention_days',
      done: 'expired traces deleted',
      sweep: project => expireProject(services, project, stopping),
      expired: project => sql.fragment`select from traces t where ${isDeletable(project)}`,
    }),
)

/** Deletes expired trace trees of a project, page by page, each tree as a whole. */
function expireProject(services: Services, project: ExpiringProject, stopping: AbortSignal) {
  const find = (after: TraceRoot | null) => listRoots(services.pool, isDeletable(project), after, BATCH)
  return inPages(stopping, { size: BATCH, find }, async roots => {
    const ids = roots.map(({ id }) => id)
    const counts = await togetherOrApart(services, ids, (tx, some) => deleteTrees(tx, services, project, some))
    await injectFault(services, 'traces_expired')
    return sumCounts(...counts)
  })
}

/** Erases the content of trace trees and deletes their rows. */
async function deleteTrees(
  tx: Tx,
  services: Services,
  project: ExpiringProject,
  roots: readonly string[],
): Promise<Counts> {
  // Before the purge, which ends pending approvals; a settled turn is then no longer retained by them.
  const retained = await findRetainedTurn(tx, await listSubtree(tx, roots), project.cutoff)
  if (retained) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: retained } })
  const { counts: erased } = await purgeTraces(tx, services, project.id, roots, RETENTION)
  const ids = await listSubtree(tx, roots)
  // Another sweep has deleted them.
  if (ids.length === 0) return {}
  const generations = await deleteTurns(tx, ids)
  await deleteTraces(tx, ids)
  const counts = { ...erased, traces: ids.length, generations }
  auditExpiry(tx, services, project, EXPIRE_TRACES, counts)
  return counts
}
