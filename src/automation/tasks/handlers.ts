import { recordedFailure } from '../../core/api/errors.ts'
import { sweepAttempts } from '../../core/jobs/attempt.ts'
import { every, handler, type JobContext } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import { makeDispatch } from './dispatch.ts'
import { taskKind } from './model.ts'
import { releaseHeld } from './pause.ts'
import { dispatchQueue, projectTasksQueue, settleQueue, taskSweep } from './queue.ts'
import { settle, settleFailure } from './settle.ts'
import { dispatchAttempts, hasDue, takeQuiet, takeStalled } from './store.ts'

/** A dispatch this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** Tasks that are told of at once, whole: each may have 5 MiB. */
const TOLD = 10
/** Rows that a sweep takes in one transaction. */
const BATCH = 500

/** Who makes the dispatches of tasks and settles them, and who looks for what was missed. */
export const taskHandlers = [
  handler(
    dispatchQueue,
    {
      concurrency: config => config.TASK_WORKER_CONCURRENCY,
      leaseSeconds: config => config.TASKS_DISPATCH_LEASE_SECONDS,
      onExhausted: (asked, error, services) =>
        settleFailure(services, asked, { ok: false, error: recordedFailure(error), cause: null }),
    },
    makeDispatch,
  ),
  handler(settleQueue, { concurrency: config => config.TASK_WORKER_CONCURRENCY }, async (asked, { services }) => {
    await fault(services, 'task_looked')
    await settle(services, asked)
  }),
  handler(taskSweep, { concurrency: 1 }, (_asked, context) => sweep(context)),
  handler(projectTasksQueue, { concurrency: 1 }, releaseHeld),
]

export const taskSchedules = [
  every(
    'task.sweep',
    config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    taskSweep,
    {},
    // Where nothing is due a sweep is one look, and no message.
    hasDue,
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
  sweepAttempts(services.pool, {
    attempts: dispatchAttempts,
    quietSeconds: QUIET_SECONDS,
    stopping,
    wake: due =>
      services.queues.send(
        due.map(({ entity: task_id, id: dispatch_id, project_id }) =>
          message(dispatchQueue, { task_id, dispatch_id, project_id }),
        ),
      ),
  })

/** Reports each task that has stalled, once. */
async function reportStalled(services: Services, stopping: AbortSignal): Promise<void> {
  for (let taken = TOLD; taken === TOLD && !stopping.aborted; )
    taken = await services.write(async tx => {
      const tasks = await takeStalled(tx, TOLD)
      for (const task of tasks) tx.emit(taskKind, 'stalled', task, { extra: { state: task.state } })
      return tasks.length
    })
}

/** Has tasks looked at that wait for what has settled without a word. */
async function wakeSettled(services: Services, stopping: AbortSignal): Promise<void> {
  const { TASKS_DISPATCH_RECONCILE_GRACE_MS: graceMs } = services.config
  for (let taken = BATCH; taken === BATCH && !stopping.aborted; ) {
    const rows = await takeQuiet(services.pool, graceMs, BATCH)
    const settled = rows.filter(row => row.settled)
    await services.queues.send(settled.map(({ task_id, project_id }) => message(settleQueue, { task_id, project_id })))
    taken = rows.length
  }
}
