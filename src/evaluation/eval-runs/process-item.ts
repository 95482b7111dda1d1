import { z } from 'zod'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { queueMessage } from '#core/queues/queue.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import { exponential } from '#core/work/retry.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { MAX_MESSAGE_LEASE_SECONDS, work } from '#core/work/work.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { generationKind } from '#execution/generations/model.ts'
import { createItemTurn, itemMessages } from './item-turn.ts'
import { type ItemAttempt, type OpenItem, RESULT_CHANNEL } from './model.ts'
import { scoreItem } from './score-item.ts'
import { evalRunQueue } from './settle-run.ts'
import { extendWait, findItemState, hasEvalWork, itemEntity, listUnsettledRuns, lockAskedItem } from './store.ts'
import { storeEvalResult } from './store-result.ts'

/** Processes an item: starts its turn, or scores the output of its turn. */
export const evalItemWork = work({
  name: 'eval.process_item',
  concern: 'evaluation',
  entity: itemEntity,
  table: itemEntity.table,
  entityColumn: 'id',
  columns: { trace_context: z.string().nullable(), created_at: z.string() },
  ids: ({ id, eval_run_id }) => ({ result_id: id, eval_run_id }),
  leaseSeconds: ({ EVAL_TASK_LEASE_TTL_MS }) =>
    Math.min(Math.ceil(EVAL_TASK_LEASE_TTL_MS / 1000), MAX_MESSAGE_LEASE_SECONDS),
  concurrency: config => config.EVAL_WORKER_BATCH,
  pausable: true,
  keepsRow: true,
  waitStates: ['asked'],
  retry: { attempts: 3, losses: 2, delayMs: exponential(1000) },
  isFinal: error => error instanceof AppError && error.code !== 'SERVICE_NOT_READY',
  // Claimed again after the project is resumed. A failed decision does not change.
  deferral: error =>
    error instanceof AppError && error.code === 'PROJECT_PAUSED' && error.meta?.decision_id === undefined ? 0 : null,
  lostError: () => new AppError('GENERATION_FAILED', { message: 'Item abandoned after too many lost workers' }),
  sweep: {
    seconds: ({ EVAL_WORKER_INTERVAL_MS }) => Math.ceil(EVAL_WORKER_INTERVAL_MS / 1000),
    dueIf: hasEvalWork,
    also: wakeUnsettledRuns,
  },
  span: ({ entity, claim }) => ({
    name: 'eval item',
    unit: true,
    from: { context: claim.trace_context, at: claim.created_at },
    shared: { [MUSTER.project]: entity.project_id },
    attributes: { [MUSTER.evalRun]: entity.eval_run_id, [MUSTER.evalResult]: entity.id },
  }),
  chain: ({ run }) => triggerChainOf(run.authority),
  onUnclaimed: ({ work_id }, { services }) => checkTurn(services, work_id),
  run: attempt => (attempt.entity.generation_id === null ? startTurn(attempt) : scoreItem(attempt)),
  async fail(tx, { entity, error }) {
    await storeEvalResult(tx, entity, { scores: [], error: itemFailure(entity, error) })
    return undefined
  },
})

/** Sends the wake-up of an item. Messages with a higher priority come first. */
export const wakeItem = (outbox: Outbox, { id, project_id }: Pick<OpenItem, 'id' | 'project_id'>, priority: number) =>
  evalItemWork.wake(outbox, { entity: id, id, project_id }, { priority })

const itemFailure = ({ generation_id }: OpenItem, error: unknown): RecordedFailure => {
  if (error instanceof AppError) return error.recorded()
  const problem = generation_id === null ? 'Item could not be executed' : 'Output could not be scored'
  return { code: 'GENERATION_FAILED', message: `${problem} because of an internal error` }
}

/** Polling interval, as a fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Starts the turn of an item, which settles the item or queues it to be scored. Occupies the slot until then, to limit the
 * concurrent items of a worker. Losing the worker meanwhile has no effect.
 */
async function startTurn({ services, entity: item, signal, stopping, suspend }: ItemAttempt): Promise<AttemptFields> {
  const messages = await itemMessages(services, item)
  const generation_id = newId(generationKind.prefix)
  const subscription = subscribeUntil({
    subscribe: listener =>
      services.notifications.listen(RESULT_CHANNEL, id => id === item.id && listener(), { onReconnect: listener }),
    read: () => findItemState(services.pool, item.id),
    isOver: found => found?.state !== 'asked',
    pollMs: POLL_MS,
  })
  try {
    await suspend(async tx => {
      await createItemTurn(tx, services, item, { generation_id, messages })
      return null
    })
    const found = await subscription.wait({
      known: { state: 'asked' },
      closed: AbortSignal.any([stopping, signal]),
      withinMs: services.config.EVAL_TASK_LEASE_TTL_MS,
    })
    if (!found) await checkTurn(services, item.id)
  } finally {
    subscription.cancel()
  }
  return { outcome: 'asked', generation_id }
}

/** Fails an item that waits for a turn that was deleted. */
const checkTurn = (services: Services, id: string): Promise<unknown> =>
  services.write(async tx => {
    const item = await lockAskedItem(tx, id)
    if (!item) return
    if (await generationKind.find(tx, item.generation_id as string))
      return extendWait(tx, id, services.config.EVAL_RUN_ABANDONED_AFTER_MS)
    const error = { code: 'GENERATION_FAILED', message: 'The turn was deleted before it ended' }
    return storeEvalResult(tx, item, { scores: [], error })
  })

const SWEEP_LIMIT = 500

/** Age of the last result at which the message that completes a run counts as lost. */
const SILENT_MS = 5000

/** Wakes runs with a result for every item. */
async function wakeUnsettledRuns({ pool, queues }: Services): Promise<void> {
  const runs = await listUnsettledRuns(pool, { silentMs: SILENT_MS, limit: SWEEP_LIMIT })
  await queues.send(runs.map(({ id, project_id }) => queueMessage(evalRunQueue, { eval_run_id: id, project_id })))
}
