import type { Config } from '../../config.ts'
import { AppError } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { isolateFailures } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { executeItem, failQueued } from './execute-item.ts'
import { evalRunQueue, evalSweepQueue, itemQueue, scoreQueue } from './queue.ts'
import { failAnswered, scoreItem } from './score-item.ts'
import { failRun, settleRun } from './settle-run.ts'
import {
  hasLiveEvalRuns,
  listOrphanedItems,
  listStaleRuns,
  releaseDeferredItems,
  releaseProjectItems,
} from './store.ts'
import { storeEvalResult } from './store-result.ts'

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
    executeItem,
  ),
  handler(
    scoreQueue,
    { concurrency, leaseSeconds, onExhausted: (item, error, services) => failAnswered(services, item, error) },
    scoreItem,
  ),
  handler(
    evalRunQueue,
    { leaseSeconds, onExhausted: ({ eval_run_id }, error, services) => failRun(services, eval_run_id, error) },
    ({ eval_run_id }, { services }) => settleRun(services, eval_run_id),
  ),
  handler(evalSweepQueue, { concurrency: 1 }, (_message, { services, stopping }) => sweep(services, stopping)),
]

export const evalSchedules = [
  schedule(
    'eval.sweep',
    config => Math.max(1, Math.ceil(config.EVAL_WORKER_INTERVAL_MS / 1000)),
    evalSweepQueue,
    {},
    hasLiveEvalRuns,
  ),
]

const SWEPT = 500

/** A run that has been quiet so long may have lost the message of its end. */
const QUIET_MS = 5000

/** Takes up what a pause held, ends items whose turn is gone, and runs that nobody works on. */
async function sweep(services: Services, stopping: AbortSignal): Promise<void> {
  const { pool, config, queues } = services
  await isolateFailures(services, { part: 'held items' }, () =>
    services.write(async tx => {
      for (const { state, ...item } of await releaseDeferredItems(tx, SWEPT))
        tx.send(state === 'answered' ? scoreQueue : itemQueue, item)
    }),
  )
  for (const item of await listOrphanedItems(pool, SWEPT)) {
    const error = new AppError('GENERATION_FAILED', { message: 'The turn was deleted before it ended' }).recorded()
    await isolateFailures(services, { eval_run_id: item.eval_run_id }, () =>
      services.write(tx => storeEvalResult(tx, item, 'asked', { output: null, scores: [], error })),
    )
  }
  const quiet = await listStaleRuns(pool, {
    quietMs: QUIET_MS,
    abandonedMs: config.EVAL_RUN_ABANDONED_AFTER_MS,
    limit: SWEPT,
  })
  for (const { id, project_id, whole, abandoned } of quiet) {
    if (stopping.aborted) return
    const lost = new AppError('INTERNAL_ERROR', { message: 'Nobody works on the items that are left of the run' })
    await isolateFailures(services, { eval_run_id: id }, async () => {
      if (whole) await queues.send([queueMessage(evalRunQueue, { eval_run_id: id, project_id })])
      else if (abandoned) await failRun(services, id, lost)
    })
  }
}

/** Lets items that a pause held go on. */
export const resumeItems = async (tx: Tx, projectId: string): Promise<void> => {
  await releaseProjectItems(tx, projectId)
}
