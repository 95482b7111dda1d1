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
  deleteEnded,
  hasDueTriggers,
  hasStarted,
  listOrphanedFirings,
  type Orphan,
  releaseDeferredFirings,
  triggerFiringWork,
} from './store.ts'
import { triggerTargets } from './targets.ts'

const DAY_MS = 86_400_000

/** A firing this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** Firings that wait for what is gone, found by one statement. */
const ORPHANS = 500

/** Firings that go on in one transaction after a pause. */
const RELEASED = 200

const MESSAGE_LEASE_SECONDS = 60

/** Who carries firings out, and who looks for those that nobody does. */
export const triggerHandlers = [
  handler(
    triggerFiringQueue,
    {
      concurrency: config => config.TRIGGER_WORKER_CONCURRENCY,
      // A message stays with a lost worker no longer than the firing.
      leaseSeconds: config => Math.min(config.TRIGGER_FIRING_LEASE_SECONDS, MESSAGE_LEASE_SECONDS),
      onExhausted: (asked, error, services) => services.write(tx => abandonTriggerFiring(tx, asked, error)),
    },
    processTriggerFiring,
  ),
  handler(projectFiringsQueue, { concurrency: 1 }, releaseFirings),
  handler(triggerFiringSweep, { concurrency: 1 }, async (asked, { services, stopping }) =>
    asked.orphans ? endOrphans(services, stopping) : wakeLost(services, stopping),
  ),
]

export const triggerSchedules = [
  schedule(
    'trigger.sweep',
    config => Math.ceil(config.TRIGGER_SCHEDULER_INTERVAL_MS / 1000),
    triggerFiringSweep,
    {},
    hasDueTriggers,
  ),
  schedule('trigger.orphans', 60, triggerFiringSweep, { orphans: true }, hasStarted),
]

const wakeLost = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: triggerFiringWork,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped where one waits already.
    wake: due =>
      services.queues.send(
        due.map(({ entity, project_id }) => queueMessage(triggerFiringQueue, { firing_id: entity, project_id })),
      ),
  })

/** Ends firings whose turn or run was deleted, each by itself: those that cannot be ended hide none behind them. */
async function endOrphans(services: Services, stopping: AbortSignal): Promise<void> {
  const started = triggerTargets.all().flatMap(({ type, starts }) => {
    const kind = starts === undefined ? undefined : kinds.find(starts)
    return kind ? [{ type, table: kind.table }] : []
  })
  const error = new AppError('RESOURCE_NOT_FOUND', { message: 'What the firing started was deleted' }).recorded()
  for (let found: readonly Orphan[] | null = null; !found || found.length === ORPHANS; ) {
    found = await listOrphanedFirings(services.pool, started, { after: found?.at(-1), limit: ORPHANS })
    for (const { id } of found) {
      if (stopping.aborted) return
      await isolateFailures(services, { firing_id: id }, () =>
        services.write(tx => settleTriggerFiring(tx, id, { error })),
      )
    }
  }
}

/** Takes up what a pause held: schedules go on with their next occurrence, and a worker sees to firings that were accepted. */
export async function resumeTriggers(tx: Tx, projectId: string): Promise<void> {
  await skipMissed(tx, projectId)
  tx.send(projectFiringsQueue, { project_id: projectId })
}

/** Has a batch of the firings go on that a pause put off, unless another one has begun. */
async function releaseFirings({ project_id }: { project_id: string }, { services }: JobContext): Promise<void> {
  await services.write(async tx => {
    const project = await lockPauseState(tx, project_id)
    if (project?.paused_at !== null) return
    const released = await releaseDeferredFirings(tx, project_id, RELEASED)
    for (const { id } of released) tx.send(triggerFiringQueue, { firing_id: id, project_id })
    if (released.length === RELEASED) tx.send(projectFiringsQueue, { project_id })
  })
}

/** Deletes firings that ended more than TRIGGER_FIRING_RETENTION_DAYS ago, and counts as old, in batches. Returns how many went. */
export async function pruneFirings({ pool, clock, config }: Services, stopping?: AbortSignal): Promise<number> {
  const before = new Date(clock.now().getTime() - config.TRIGGER_FIRING_RETENTION_DAYS * DAY_MS)
  const firings = await deleteInBatches(limit => deleteEnded(pool, before, limit), stopping)
  return firings + (await deleteInBatches(limit => deleteFanouts(pool, before, limit), stopping))
}
