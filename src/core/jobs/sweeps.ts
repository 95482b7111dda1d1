import { z } from 'zod'
import { declarations } from '../declarations.ts'
import type { Services } from '../process/services.ts'
import { handler, type Schedule, schedule } from './handler.ts'
import { workQueue } from './queue.ts'

/** Deletion of what is past its time, or another daily duty. Idempotent: a second one at the same time does no harm. */
export type Sweep = {
  name: string
  /** Cron expression in UTC; minutes differ, so that sweeps do not pile up. */
  when: string
  /** Returns how many rows went. */
  run(services: Services, stopping: AbortSignal): Promise<number>
}

export const sweeps = declarations<Sweep>('sweep', ({ name }) => name)

/** Rows that a sweep deletes in one transaction. */
const BATCH = 5000

/**
 * Deletes up to a number of rows again and again, until fewer are left or the worker stops. Returns how many went.
 * @param remove deletes at most `limit` rows in a transaction of its own, and returns how many
 * @param batch rows of one transaction; fewer where each takes many others along
 */
export async function deleteInBatches(
  remove: (limit: number) => Promise<number>,
  stopping: AbortSignal | undefined,
  batch = BATCH,
): Promise<number> {
  let removed = 0
  while (!stopping?.aborted) {
    const count = await remove(batch)
    removed += count
    if (count < batch) break
  }
  return removed
}

/** A part of a sweep by itself: what fails in it is logged with `ids`, and keeps nothing from what is swept beside it. */
export const isolateFailures = (
  { log }: Pick<Services, 'log'>,
  ids: Record<string, unknown>,
  work: () => Promise<unknown>,
): Promise<void> =>
  work().then(
    () => undefined,
    error => log.error({ err: error, ...ids }, 'part of a sweep failed'),
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
    // A message of another release may name a sweep that this one no longer has.
    const sweep = sweeps.find(message.sweep)
    if (!sweep) return
    const started = performance.now()
    const removed = await sweep.run(services, stopping)
    log.info({ sweep: sweep.name, removed, ms: Math.round(performance.now() - started) }, 'sweep done')
  },
)

export const scheduleOf = ({ name, when }: Sweep): Schedule =>
  schedule(`sweep ${name}`, when, retentionSweepQueue, { sweep: name })
