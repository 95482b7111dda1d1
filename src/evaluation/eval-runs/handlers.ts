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
  handler(evalSweepQueue, { concurrency: 1 }, (_message, { services, stopping }) => sweepRuns(services, stopping)),
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

const SWEEP_LIMIT = 500

/** Inactivity after which a run may have lost its completion message. */
const STALE_MS = 5000

/** Releases deferred items, fails items whose turn was deleted, and completes or fails stale runs. */
async function sweepRuns(services: Services, stopping: AbortSignal): Promise<void> {
  const { pool, config, queues } = services
  await isolateFailures(services, { part: 'held items' }, () =>
    services.write(async tx => {
      for (const { state, ...item } of await releaseDeferredItems(tx, SWEEP_LIMIT))
        tx.send(state === 'answered' ? scoreQueue : itemQueue, item)
    }),
  )
  for (const item of await listOrphanedItems(pool, SWEEP_LIMIT)) {
    const error = new AppError('GENERATION_FAILED', { message: 'The turn was deleted before it ended' }).recorded()
    await isolateFailures(services, { eval_run_id: item.eval_run_id }, () =>
      services.write(tx => storeEvalResult(tx, item, 'asked', { output: null, scores: [], error })),
    )
  }
  const stale = await listStaleRuns(pool, {
    staleMs: STALE_MS,
    abandonedMs: config.EVAL_RUN_ABANDONED_AFTER_MS,
    limit: SWEEP_LIMIT,
  })
  for (const { id, project_id, whole, abandoned } of stale) {
    if (stopping.aborted) return
    const lost = new AppError('INTERNAL_ERROR', { message: 'No worker is processing the remaining items of the run' })
    await isolateFailures(services, { eval_run_id: id }, async () => {
      if (whole) await queues.send([queueMessage(evalRunQueue, { eval_run_id: id, project_id })])
      else if (abandoned) await failRun(services, id, lost)
    })
  }
}

/** Releases the items of a project that were deferred during its pause. */
export const resumeItems = async (tx: Tx, projectId: string): Promise<void> => {
  await releaseProjectItems(tx, projectId)
}
