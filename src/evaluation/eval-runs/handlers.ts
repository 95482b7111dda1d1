import type { Config } from '../../config.ts'
import { AppError } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { every, handler } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import { apart } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { askItem, failQueued } from './ask.ts'
import { finish } from './finish.ts'
import { itemQueue, runQueue, scoreQueue, sweepQueue } from './queue.ts'
import { failAnswered, scoreItem } from './scoring.ts'
import { failRun, settleRun } from './settle.ts'
import { hasLiveRuns, orphans, quietRuns, releaseHeld, releaseProject } from './store.ts'

const concurrency = (config: Config): number => config.EVAL_WORKER_BATCH
const leaseSeconds = (config: Config): number => Math.max(1, Math.ceil(config.EVAL_TASK_LEASE_TTL_MS / 1000))

/** Who asks and scores items, and settles their runs. */
export const evalHandlers = [
  handler(
    itemQueue,
    {
      concurrency,
      leaseSeconds,
      onExhausted: ({ result_id }, error, services) => failQueued(services, result_id, error),
    },
    askItem,
  ),
  handler(
    scoreQueue,
    { concurrency, leaseSeconds, onExhausted: (item, error, services) => failAnswered(services, item, error) },
    scoreItem,
  ),
  handler(
    runQueue,
    { leaseSeconds, onExhausted: ({ eval_run_id }, error, services) => failRun(services, eval_run_id, error) },
    ({ eval_run_id }, { services }) => settleRun(services, eval_run_id),
  ),
  handler(sweepQueue, { concurrency: 1 }, (_message, { services, stopping }) => sweep(services, stopping)),
]

export const evalSchedules = [
  every(
    'eval.sweep',
    config => Math.max(1, Math.ceil(config.EVAL_WORKER_INTERVAL_MS / 1000)),
    sweepQueue,
    {},
    hasLiveRuns,
  ),
]

const SWEPT = 500

/** A run that has been quiet so long may have lost the message of its end. */
const QUIET_MS = 5000

/** Takes up what a pause held, ends items whose turn is gone, and runs that nobody works on. */
async function sweep(services: Services, stopping: AbortSignal): Promise<void> {
  const { pool, config, queues } = services
  await apart(services, { part: 'held items' }, () =>
    services.write(async tx => {
      for (const { state, ...item } of await releaseHeld(tx, SWEPT))
        tx.send(state === 'answered' ? scoreQueue : itemQueue, item)
    }),
  )
  for (const item of await orphans(pool, SWEPT)) {
    const error = new AppError('GENERATION_FAILED', { message: 'The turn was deleted before it ended' }).recorded()
    await apart(services, { eval_run_id: item.eval_run_id }, () =>
      services.write(tx => finish(tx, item, 'asked', { output: null, scores: [], error })),
    )
  }
  const quiet = await quietRuns(pool, {
    quietMs: QUIET_MS,
    abandonedMs: config.EVAL_RUN_ABANDONED_AFTER_MS,
    limit: SWEPT,
  })
  for (const { id, project_id, whole, abandoned } of quiet) {
    if (stopping.aborted) return
    const lost = new AppError('INTERNAL_ERROR', { message: 'Nobody works on the items that are left of the run' })
    await apart(services, { eval_run_id: id }, async () => {
      if (whole) await queues.send([message(runQueue, { eval_run_id: id, project_id })])
      else if (abandoned) await failRun(services, id, lost)
    })
  }
}

/** Lets items that a pause held go on. */
export const resumeItems = async (tx: Tx, projectId: string): Promise<void> => {
  await releaseProject(tx, projectId)
}
