import { recordedFailure } from '../../core/api/errors.ts'
import { handler, type JobContext, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { executeDispatch } from './execute-dispatch.ts'
import { taskKind } from './model.ts'
import { releaseDeferredDispatches } from './pause.ts'
import { projectTasksQueue, settleQueue, taskDispatchQueue, taskSweep } from './queue.ts'
import { settleFailure, settleTask } from './settle.ts'
import { claimStalled, claimUnattended, hasDueTasks, taskDispatchWork } from './store.ts'

/** Seconds after its due time at which a dispatch counts as orphaned. */
const ORPHANED_AFTER_SECONDS = 5

/** Tasks per transaction of stall reports. Each event carries its task, up to 5 MiB. */
const STALLED_BATCH = 10
/** Rows per transaction of the other sweeps. */
const BATCH = 500

export const taskHandlers = [
  handler(
    taskDispatchQueue,
    {
      concurrency: config => config.TASK_WORKER_CONCURRENCY,
      leaseSeconds: config => config.TASKS_DISPATCH_LEASE_SECONDS,
      onExhausted: (message, error, services) =>
        settleFailure(services, message, { ok: false, error: recordedFailure(error), cause: null }),
    },
    executeDispatch,
  ),
  handler(settleQueue, { concurrency: config => config.TASK_WORKER_CONCURRENCY }, async (message, { services }) => {
    await injectFault(services, 'task_looked')
    await settleTask(services, message)
  }),
  handler(taskSweep, { concurrency: 1 }, (_message, context) => sweepTasks(context)),
  handler(projectTasksQueue, { concurrency: 1 }, releaseDeferredDispatches),
]

export const taskSchedules = [
  schedule(
    'task.sweep',
    config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    taskSweep,
    {},
    // One query per interval while nothing is due, without a message.
    hasDueTasks,
  ),
]

/** Runs the parts of the sweep independently: a failed part does not stop the others. */
async function sweepTasks({ services, stopping }: JobContext): Promise<void> {
  for (const part of [reportStalled, wakeOrphaned, wakeSettled])
    await part(services, stopping).catch(error =>
      services.log.error({ err: error, part: part.name }, 'task sweep failed'),
    )
}

/** Sends messages for dispatches whose worker or message was lost. */
const wakeOrphaned = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: taskDispatchWork,
    quietSeconds: ORPHANED_AFTER_SECONDS,
    stopping,
    wake: due =>
      services.queues.send(
        due.map(({ entity: task_id, id: dispatch_id, project_id }) =>
          queueMessage(taskDispatchQueue, { task_id, dispatch_id, project_id }),
        ),
      ),
  })

/** Emits one event per stalled task. */
async function reportStalled(services: Services, stopping: AbortSignal): Promise<void> {
  for (let count = STALLED_BATCH; count === STALLED_BATCH && !stopping.aborted; )
    count = await services.write(async tx => {
      const tasks = await claimStalled(tx, STALLED_BATCH)
      for (const task of tasks) tx.emit(taskKind, 'stalled', task, { extra: { state: task.state } })
      return tasks.length
    })
}

/** Wakes tasks whose dispatched work has settled without a notification. */
async function wakeSettled(services: Services, stopping: AbortSignal): Promise<void> {
  const { TASKS_DISPATCH_RECONCILE_GRACE_MS: graceMs } = services.config
  for (let count = BATCH; count === BATCH && !stopping.aborted; ) {
    const rows = await claimUnattended(services.pool, graceMs, BATCH)
    const settled = rows.filter(row => row.settled)
    await services.queues.send(
      settled.map(({ task_id, project_id }) => queueMessage(settleQueue, { task_id, project_id })),
    )
    count = rows.length
  }
}
