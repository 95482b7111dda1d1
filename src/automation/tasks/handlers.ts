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
import { claimStalled, claimUnattended, dispatchAttempts, hasDueTasks } from './store.ts'

/** A dispatch this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** Tasks that are told of at once, whole: each may have 5 MiB. */
const TOLD = 10
/** Rows that a sweep takes in one transaction. */
const BATCH = 500

/** Who makes the dispatches of tasks and settles them, and who looks for what was missed. */
export const taskHandlers = [
  handler(
    taskDispatchQueue,
    {
      concurrency: config => config.TASK_WORKER_CONCURRENCY,
      leaseSeconds: config => config.TASKS_DISPATCH_LEASE_SECONDS,
      onExhausted: (asked, error, services) =>
        settleFailure(services, asked, { ok: false, error: recordedFailure(error), cause: null }),
    },
    executeDispatch,
  ),
  handler(settleQueue, { concurrency: config => config.TASK_WORKER_CONCURRENCY }, async (asked, { services }) => {
    await injectFault(services, 'task_looked')
    await settleTask(services, asked)
  }),
  handler(taskSweep, { concurrency: 1 }, (_asked, context) => sweep(context)),
  handler(projectTasksQueue, { concurrency: 1 }, releaseDeferredDispatches),
]

export const taskSchedules = [
  schedule(
    'task.sweep',
    config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    taskSweep,
    {},
    // Where nothing is due a sweep is one look, and no message.
    hasDueTasks,
  ),
]

/** Each part by itself: what fails in one keeps nothing from the others. */
async function sweep({ services, stopping }: JobContext): Promise<void> {
  for (const part of [reportStalled, wakeLost, wakeSettled])
    await part(services, stopping).catch(error =>
      services.log.error({ err: error, part: part.name }, 'tasks not swept'),
    )
}

/** Has dispatches taken up that a lost worker had, or whose message was lost. */
const wakeLost = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: dispatchAttempts,
    quietSeconds: QUIET_SECONDS,
    stopping,
    wake: due =>
      services.queues.send(
        due.map(({ entity: task_id, id: dispatch_id, project_id }) =>
          queueMessage(taskDispatchQueue, { task_id, dispatch_id, project_id }),
        ),
      ),
  })

/** Reports each task that has stalled, once. */
async function reportStalled(services: Services, stopping: AbortSignal): Promise<void> {
  for (let taken = TOLD; taken === TOLD && !stopping.aborted; )
    taken = await services.write(async tx => {
      const tasks = await claimStalled(tx, TOLD)
      for (const task of tasks) tx.emit(taskKind, 'stalled', task, { extra: { state: task.state } })
      return tasks.length
    })
}

/** Has tasks looked at that wait for what has settled without a word. */
async function wakeSettled(services: Services, stopping: AbortSignal): Promise<void> {
  const { TASKS_DISPATCH_RECONCILE_GRACE_MS: graceMs } = services.config
  for (let taken = BATCH; taken === BATCH && !stopping.aborted; ) {
    const rows = await claimUnattended(services.pool, graceMs, BATCH)
    const settled = rows.filter(row => row.settled)
    await services.queues.send(
      settled.map(({ task_id, project_id }) => queueMessage(settleQueue, { task_id, project_id })),
    )
    taken = rows.length
  }
}
