import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import { declarations } from '../base/declarations.ts'
import type { Services } from '../base/services.ts'
import { workQueue } from '../queues/queue.ts'
import { handler, type Schedule, schedule } from './handler.ts'

/** A periodic deletion of expired rows or other housekeeping. Must be idempotent and safe to run concurrently. */
export type Sweep = {
  name: string
  /** Cron expression in UTC, with a minute no other sweep uses, so that sweeps do not overlap. */
  when: string
  /** Returns the number of rows removed. */
  run(services: Services, stopping: AbortSignal): Promise<number>
}

export const sweeps = declarations<Sweep>('sweep', ({ name }) => name)

/** Longest pause between two batches of a sweep. */
const MAX_PAUSE_MS = 1000

/**
 * Waits between two batches of a sweep for a quarter of the time that a batch took, so that a long sweep leaves the
 * database to requests and turns.
 */
export const yieldAfter = (batchMs: number, stopping: AbortSignal | undefined): Promise<void> =>
  pause(Math.min(batchMs / 4, MAX_PAUSE_MS), undefined, { signal: stopping }).catch(() => undefined)

const DEFAULT_BATCH = 5000

/**
 * Deletes rows in batches until a batch is incomplete or the worker stops. Returns the number of deleted rows.
 * @param remove deletes at most `limit` rows in a separate transaction and returns their number
 * @param batch rows per transaction, default 5,000; smaller where a row cascades to many others
 */
export async function deleteInBatches(
  remove: (limit: number) => Promise<number>,
  stopping: AbortSignal | undefined,
  batch = DEFAULT_BATCH,
): Promise<number> {
  let removed = 0
  while (!stopping?.aborted) {
    const started = performance.now()
    const count = await remove(batch)
    removed += count
    if (count < batch) break
    await yieldAfter(performance.now() - started, stopping)
  }
  return removed
}

/**
 * Runs the part of a sweep for one item and logs its failure with `ids`, so that the sweep continues with the others.
 */
export const isolateFailures = (
  { log }: Pick<Services, 'log'>,
  ids: Record<string, unknown>,
  work: () => Promise<unknown>,
): Promise<void> =>
  work().then(
    () => undefined,
    error => log.error({ err: error, ...ids }, 'sweep item failed'),
  )

export const retentionSweepQueue = workQueue('retention.sweep', {
  message: z.object({ sweep: z.string() }),
  concern: 'snapshot',
  retry: { limit: 5, delaySeconds: 30, backoff: true, maxDelaySeconds: 1800 },
})

export const sweepHandler = handler(
  retentionSweepQueue,
  { concurrency: 1 },
  async (message, { services, log, stopping }) => {
    // A message of an older release may name a removed sweep.
    const sweep = sweeps.find(message.sweep)
    if (!sweep) return
    const started = performance.now()
    const removed = await sweep.run(services, stopping)
    log.info({ sweep: sweep.name, removed, ms: Math.round(performance.now() - started) }, 'sweep completed')
  },
)

export const scheduleOf = ({ name, when }: Sweep): Schedule =>
  schedule(`sweep ${name}`, when, retentionSweepQueue, { sweep: name })
