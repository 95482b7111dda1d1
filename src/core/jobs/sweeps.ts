import { z } from 'zod'
import { declarations } from '../declarations.ts'
import type { Services } from '../process/services.ts'
import { every, handler, type Schedule } from './handler.ts'
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

export const sweepQueue = workQueue('retention.sweep', {
  message: z.object({ sweep: z.string() }),
  concern: 'snapshot',
  retry: { limit: 5, delaySeconds: 30, backoff: true, maxDelaySeconds: 1800 },
})

export const sweepHandler = handler(sweepQueue, { concurrency: 1 }, async (message, { services, log, stopping }) => {
  // A message of another release may name a sweep that this one no longer has.
  const sweep = sweeps.find(message.sweep)
  if (!sweep) return
  const started = performance.now()
  const removed = await sweep.run(services, stopping)
  log.info({ sweep: sweep.name, removed, ms: Math.round(performance.now() - started) }, 'sweep done')
})

export const scheduleOf = ({ name, when }: Sweep): Schedule => every(`sweep ${name}`, when, sweepQueue, { sweep: name })
