import type { Services } from '#core/base/services.ts'
import { taskKind } from './model.ts'
import { wakeDispatch } from './queue.ts'
import { checkStarted, claimStalled } from './store.ts'

/** Tasks per transaction of stall reports. Each event carries its task, up to 5 MiB. */
const STALLED_BATCH = 10
/** Dispatches per transaction. */
const CHECK_BATCH = 500

/** Wakes dispatches whose work has settled without a notification, and reports stalled tasks. */
export async function sweepTasks(services: Services, stopping: AbortSignal): Promise<void> {
  await repeat(CHECK_BATCH, services, stopping, async tx => {
    const checked = await checkStarted(tx, services.config.TASKS_DISPATCH_RECONCILE_GRACE_MS, CHECK_BATCH)
    for (const { settled, ...dispatch } of checked) if (settled) wakeDispatch(tx, dispatch)
    return checked
  })
  await repeat(STALLED_BATCH, services, stopping, async tx => {
    const tasks = await claimStalled(tx, STALLED_BATCH)
    for (const task of tasks) tx.emit(taskKind, 'stalled', task, { extra: { state: task.state } })
    return tasks
  })
}

/** Repeats a transaction until it finds fewer rows than a batch. */
async function repeat(
  batch: number,
  services: Services,
  stopping: AbortSignal,
  work: Parameters<typeof services.write<readonly unknown[]>>[0],
): Promise<void> {
  let found = batch
  while (found === batch && !stopping.aborted) found = (await services.write(work)).length
}
