import { z } from 'zod'
import { storageBackends } from '../../content/storage/backends.ts'
import { type BackgroundTask, handler, RequeueError, schedule } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { executeTurn } from './loop/execute-turn.ts'
import { generationKind } from './model.ts'
import { abortTurn } from './request/cancel-turn.ts'
import { turnQueue } from './request/create.ts'
import { listTurnsWithoutWakeUp, overdueActions } from './store.ts'
import { deleteOldFrames } from './streams/frame-store.ts'
import { flushTraces, TRACES_AT_ONCE, traceFlushQueue } from './traces/flush.ts'
import { listUnflushedTraces, lockSettlingTurns } from './traces/store.ts'

const generationSweep = workQueue('turn.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 1 },
  leaseSeconds: 60,
})

/** Who runs turns outside a conversation, writes their traces, and finds those whose wake-up is missing. */
export const generationHandlers = [
  handler(
    turnQueue,
    {
      leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
      onExhausted: async ({ generation_id }, error, services) => {
        await services.write(tx =>
          abortTurn(tx, services, generation_id, {
            code: 'GENERATION_FAILED',
            message: error instanceof Error ? error.message : 'The turn could not be run',
          }),
        )
      },
    },
    async ({ generation_id }, { services, signal, stopping, log, complete, releaseSlotWhile: aside }) => {
      const outcome = await executeTurn(services, generation_id, { signal, stopping, log, complete, aside })
      if (outcome === 'handed_back') throw new RequeueError()
    },
  ),
  handler(traceFlushQueue, { concurrency: 1, batch: TRACES_AT_ONCE }, async (messages, { services }) => {
    const traceIds = messages.map(({ trace_id }) => trace_id)
    await lockSettlingTurns(services.pool, traceIds)
    await flushTraces(services, traceIds)
  }),
  handler(generationSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepTurns(services, stopping)),
]

export const generationSchedules = [
  schedule('turn.sweep', config => config.GENERATION_SWEEP_SECONDS, generationSweep, {}),
]

/** Loads the SDK when a worker starts, so that the first turn does not wait for it. */
export const preloadSdk: BackgroundTask = {
  name: 'load model SDK',
  concern: 'generation',
  start() {
    void import('../providers/attempt.ts')
    return undefined
  },
}

/** Fails turns whose clients have not made their calls in time. Returns how many there were. */
async function expireActions(services: Services, limit: number): Promise<number> {
  const found = await overdueActions(services.pool, services.config.GENERATION_ACTION_TTL_SECONDS, Math.min(limit, 100))
  const failure = {
    code: 'GENERATION_FAILED',
    message: 'The calls of the turn were not answered in time',
    meta: { reason: 'action_expired' },
  }
  for (const { id } of found)
    await services.write(async tx => {
      const row = await generationKind.find(tx, id, true)
      if (row?.status === 'requires_action') await abortTurn(tx, services, id, failure)
    })
  return found.length
}

/**
 * The floor under wake-ups: turns that nobody has touched for a lease and a sweep are run again, steps that did not get
 * into their file are written again, and old frames go.
 */
async function sweepTurns(services: Services, stopping: AbortSignal): Promise<void> {
  const { pool, queues, config } = services
  const idle = await listTurnsWithoutWakeUp(
    pool,
    Math.min(config.GENERATION_SWEEP_SECONDS, config.GENERATION_LEASE_SECONDS),
  )
  if (idle.length > 0)
    await queues.send(idle.map(({ id, project_id }) => ({ queue: turnQueue, data: { generation_id: id, project_id } })))
  if (config.GENERATION_ACTION_TTL_SECONDS > 0) await deleteInBatches(limit => expireActions(services, limit), stopping)
  await deleteInBatches(limit => deleteOldFrames(pool, limit), stopping)
  // Without a place for bytes a message would only fail; the journal keeps the steps.
  const unwritten = storageBackends(services).problem()
    ? []
    : await listUnflushedTraces(pool, traceFlushQueue.name, 2 * config.GENERATION_SWEEP_SECONDS, 1000)
  if (unwritten.length > 0) await queues.send(unwritten.map(data => ({ queue: traceFlushQueue, data })))
}
