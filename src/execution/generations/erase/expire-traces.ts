import { type Counts, sumCounts } from '../../../control/retention/erasure.ts'
import {
  auditExpiry,
  type ExpiringProject,
  inPages,
  retentionSweep,
  sweepProjects,
  togetherOrApart,
} from '../../../control/retention/expire.ts'
import { raise } from '../../../core/api/errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { Services } from '../../../core/process/services.ts'
import { deleteTraces } from '../traces/store.ts'
import { RETENTION } from './expire-content.ts'
import { purgeTraces } from './purge.ts'
import { deletableRoots, deleteTurns, heldTurn, subtreeIds, type TraceRoot } from './purge-store.ts'

/** The end of traces and of their generations by the retention of their project (`trace_retention_days`). */

export const EXPIRE_TRACES = 'traces:ExpireTraces'

/** Trees of traces of a transaction. */
const BATCH = 100

export const { handler: traceSweepHandler, schedule: traceSweepSchedule } = retentionSweep(
  'trace.sweep',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      days: 'trace_retention_days',
      done: 'traces past their retention deleted',
      sweep: project => expireProject(services, project, stopping),
    }),
)

/** Deletes trees of traces of a project, a page after the other, each tree as a whole. */
async function expireProject(services: Services, project: ExpiringProject, stopping: AbortSignal): Promise<Counts> {
  const { pool } = services
  let done: Counts = {}
  const find = (after: TraceRoot | null) => deletableRoots(pool, project.id, project.cutoff, after, BATCH)
  await inPages(stopping, { size: BATCH, find }, async roots => {
    const ids = roots.map(({ id }) => id)
    done = sumCounts(done, ...(await togetherOrApart(services, ids, (tx, some) => expire(tx, services, project, some))))
    await injectFault(services, 'traces_expired')
  })
  return done
}

/** Erases the content of trees as a purge does, and deletes what is left of them. */
async function expire(tx: Tx, services: Services, project: ExpiringProject, roots: readonly string[]): Promise<Counts> {
  // Before the purge, which ends what waits for a person. A turn that has ended is not waited for anew.
  const held = await heldTurn(tx, await subtreeIds(tx, roots), project.cutoff)
  if (held) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: held } })
  const { counts: erased } = await purgeTraces(tx, services, project.id, roots, RETENTION)
  const ids = await subtreeIds(tx, roots)
  // Another sweep was first.
  if (ids.length === 0) return {}
  const generations = await deleteTurns(tx, ids)
  await deleteTraces(tx, ids)
  const counts = { ...erased, traces: ids.length, generations }
  auditExpiry(tx, services, project, EXPIRE_TRACES, counts)
  return counts
}
