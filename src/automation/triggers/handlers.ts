import { AppError } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import type { Tx } from '../../core/db/writer.ts'
import { handler, type JobContext, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { deleteInBatches, isolateFailures } from '../../core/jobs/sweeps.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { lockPauseState } from '../../identity/projects/store.ts'
import { deleteFanouts } from './fanout.ts'
import { abandonTriggerFiring, processTriggerFiring } from './process-trigger-firing.ts'
import { projectFiringsQueue, triggerFiringQueue, triggerFiringSweep } from './queue.ts'
import { skipMissed } from './schedule.ts'
import { settleTriggerFiring } from './settle.ts'
import {
  deleteSettledTriggerFirings,
  hasDueFirings,
  hasStartedFirings,
  listOrphanedFirings,
  type Orphan,
  releaseDeferredFirings,
  triggerFiringWork,
} from './store.ts'
import { triggerTargets } from './targets.ts'

const DAY_MS = 86_400_000

/** Seconds after its due time at which a firing counts as orphaned. */
const ORPHANED_AFTER_SECONDS = 5

/** Firings per query for deleted work. */
const ORPHAN_BATCH = 500

/** Deferred firings released per transaction. */
const RELEASE_BATCH = 200

const MESSAGE_LEASE_SECONDS = 60

export const triggerHandlers = [
  handler(
    triggerFiringQueue,
    {
      concurrency: config => config.TRIGGER_WORKER_CONCURRENCY,
      // The lease of a message must not outlast the lease of its firing.
      leaseSeconds: config => Math.min(config.TRIGGER_FIRING_LEASE_SECONDS, MESSAGE_LEASE_SECONDS),
      onExhausted: (message, error, services) => services.write(tx => abandonTriggerFiring(tx, message, error)),
    },
    processTriggerFiring,
  ),
  handler(projectFiringsQueue, { concurrency: 1 }, releaseFirings),
  handler(triggerFiringSweep, { concurrency: 1 }, async (message, { services, stopping }) =>
    message.orphans ? settleOrphans(services, stopping) : wakeOverdue(services, stopping),
  ),
]

export const triggerSchedules = [
  schedule(
    'trigger.sweep',
    config => Math.ceil(config.TRIGGER_SCHEDULER_INTERVAL_MS / 1000),
    triggerFiringSweep,
    {},
    hasDueFirings,
  ),
  schedule('trigger.orphans', 60, triggerFiringSweep, { orphans: true }, hasStartedFirings),
]

/** Sends messages for firings whose worker or message was lost. */
const wakeOverdue = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: triggerFiringWork,
    quietSeconds: ORPHANED_AFTER_SECONDS,
    stopping,
    // The mailbox drops the message if one is queued already.
    wake: due =>
      services.queues.send(
        due.map(({ entity, project_id }) => queueMessage(triggerFiringQueue, { firing_id: entity, project_id })),
      ),
  })

/** Fails firings whose turn or run was deleted. Each is settled separately: a failure does not block the others. */
async function settleOrphans(services: Services, stopping: AbortSignal): Promise<void> {
  const started = triggerTargets.all().flatMap(({ type, starts }) => {
    const kind = starts === undefined ? undefined : kinds.find(starts)
    return kind ? [{ type, table: kind.table }] : []
  })
  const error = new AppError('RESOURCE_NOT_FOUND', { message: 'The work started by the firing was deleted' }).recorded()
  for (let page: readonly Orphan[] | null = null; !page || page.length === ORPHAN_BATCH; ) {
    page = await listOrphanedFirings(services.pool, started, { after: page?.at(-1), limit: ORPHAN_BATCH })
    for (const { id } of page) {
      if (stopping.aborted) return
      await isolateFailures(services, { firing_id: id }, () =>
        services.write(tx => settleTriggerFiring(tx, id, { error })),
      )
    }
  }
}

/** Resumes a project's triggers: schedules continue with their next occurrence and deferred firings are released. */
export async function resumeTriggers(tx: Tx, projectId: string): Promise<void> {
  await skipMissed(tx, projectId)
  tx.send(projectFiringsQueue, { project_id: projectId })
}

/** Releases one batch of a project's deferred firings and queues the next. Stops if the project is paused again. */
async function releaseFirings({ project_id }: { project_id: string }, { services }: JobContext): Promise<void> {
  await services.write(async tx => {
    const project = await lockPauseState(tx, project_id)
    if (project?.paused_at !== null) return
    const released = await releaseDeferredFirings(tx, project_id, RELEASE_BATCH)
    for (const { id } of released) tx.send(triggerFiringQueue, { firing_id: id, project_id })
    if (released.length === RELEASE_BATCH) tx.send(projectFiringsQueue, { project_id })
  })
}

/**
 * Deletes, in batches, firings that settled and fan-out counts that were created more than
 * TRIGGER_FIRING_RETENTION_DAYS ago. Returns the number of deleted rows.
 */
export async function pruneFirings({ pool, clock, config }: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(clock.now().getTime() - config.TRIGGER_FIRING_RETENTION_DAYS * DAY_MS)
  const firings = await deleteInBatches(limit => deleteSettledTriggerFirings(pool, before, limit), stopping)
  return firings + (await deleteInBatches(limit => deleteFanouts(pool, before, limit), stopping))
}
