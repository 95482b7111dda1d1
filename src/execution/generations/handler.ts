import { z } from 'zod'
import { storageBackends } from '#content/storage/backends.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { queueMessage, workQueue } from '#core/queues/queue.ts'
import { type BackgroundTask, handler, RequeueError, schedule } from '#core/work/handler.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { Tx } from '#core/writes/writer.ts'
import { executeTurn } from './loop/execute-turn.ts'
import { loadWithMessage, readLoadedTurn } from './loop/turn-store.ts'
import { generationKind } from './model.ts'
import { abortTurn } from './request/cancel-turn.ts'
import { turnQueue } from './request/create.ts'
import { clearHolders, listOverdueActions, listTurnsWithoutWakeUp } from './store.ts'
import { deleteOldFrames } from './streams/frame-store.ts'
import { flushTraces, TRACES_PER_FLUSH, traceFlushQueue } from './traces/flush.ts'
import { listUnflushedTraces, lockSettlingTurns } from './traces/store.ts'

const generationSweep = workQueue('turn.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 1 },
  leaseSeconds: 60,
})

/** Executes turns outside conversations, flushes traces, and sweeps for turns without a wake-up. */
export const generationHandlers = [
  handler(
    turnQueue,
    {
      boundsLosses: true,
      preload: loadWithMessage,
      leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
      onExhausted: async ({ generation_id }, error, services) => {
        await services.write(tx =>
          abortTurn(tx, services, generation_id, {
            code: 'GENERATION_FAILED',
            message: error instanceof Error ? error.message : 'The turn could not be executed',
          }),
        )
      },
    },
    async ({ generation_id }, { services, preloaded, ...context }) => {
      const outcome = await executeTurn(
        services,
        generation_id,
        context,
        preloaded === null ? null : readLoadedTurn(preloaded),
      )
      if (outcome === 'requeued') throw new RequeueError()
    },
  ),
  handler(traceFlushQueue, { concurrency: 1, batch: TRACES_PER_FLUSH }, async (messages, { services }) => {
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

/** Sends the messages of turns that lost web processes executed. */
export async function wakeTurnsOfLostHolders(tx: Tx, isGone: (holder: Fragment) => Fragment): Promise<void> {
  for (const { id: generation_id, project_id } of await clearHolders(tx, { isGone }))
    tx.send(turnQueue, { generation_id, project_id })
}

/** Fails turns whose client did not submit tool outputs within GENERATION_ACTION_TTL_SECONDS. Returns their number. */
async function failOverdueActions(services: Services, limit: number): Promise<number> {
  const found = await listOverdueActions(
    services.pool,
    services.config.GENERATION_ACTION_TTL_SECONDS,
    Math.min(limit, 100),
  )
  const failure = {
    code: 'GENERATION_FAILED',
    message: 'The tool outputs were not submitted in time',
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
 * Fallback for lost notifications: clears holders that left, or have exceeded the time of a turn, wakes turns without
 * progress for a lease or a sweep interval, queues the flush of settled steps that are still in the journal, and deletes old
 * frames.
 */
async function sweepTurns(services: Services, stopping: AbortSignal): Promise<void> {
  const { pool, queues, config } = services
  const lost = await clearHolders(pool, {
    isGone: holder => sql.fragment`(
      not exists (select from worker_heartbeats b where b.holder = ${holder})
      or exists (select from generations g where g.id = w.generation_id
        and g.updated_at < now() - make_interval(secs => ${config.GENERATION_MAX_SECONDS + config.GENERATION_LEASE_SECONDS})))`,
  })
  const idle = await listTurnsWithoutWakeUp(
    pool,
    Math.min(config.GENERATION_SWEEP_SECONDS, config.GENERATION_LEASE_SECONDS),
  )
  const wakeUps = [...lost, ...idle].map(({ id: generation_id, project_id }) =>
    queueMessage(turnQueue, { generation_id, project_id }),
  )
  if (wakeUps.length > 0) await queues.send(wakeUps)
  if (config.GENERATION_ACTION_TTL_SECONDS > 0)
    await deleteInBatches(limit => failOverdueActions(services, limit), stopping)
  await deleteInBatches(limit => deleteOldFrames(pool, limit), stopping)
  // Without a storage backend every message would fail; the journal retains the steps.
  const unwritten = storageBackends(services).problem()
    ? []
    : await listUnflushedTraces(pool, traceFlushQueue.name, 2 * config.GENERATION_SWEEP_SECONDS, 1000)
  if (unwritten.length > 0) await queues.send(unwritten.map(data => ({ queue: traceFlushQueue, data })))
}
