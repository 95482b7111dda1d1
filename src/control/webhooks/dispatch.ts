import { setTimeout as sleep } from 'node:timers/promises'
import { LoopStalledError, runLoopOnce } from '#core/base/loop.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { eventDispatchQueue } from '#core/writes/writer.ts'
import {
  completeDispatch,
  deferDispatch,
  markWithoutSubscribers,
  readUndispatched,
  type WebhookTarget,
} from './delivery-store.ts'
import { eventSubscribers } from './event-subscribers.ts'
import { matchEvents } from './matching.ts'

/** Most events and deliveries per transaction; a single event may exceed the deliveries. */
const BATCH = 200
const MAX_DELIVERIES = 5000

/** Half of the time after which a batch is abandoned: many subscribers take long. */
const BATCH_MS = 30_000

/** Delay before retrying a batch after a transient database error. */
const RETRY_MS = 500

/**
 * Dispatches events: one transaction matches subscribers, queues deliveries and marks the events, so that a repeated
 * run has no effect.
 * @param which `next` skips events locked by another process, `ids` waits for them
 * @returns the number of dispatched events, and the webhooks with new deliveries
 */
export async function dispatchEvents(
  services: Services,
  which: { next: readonly string[] } | { ids: readonly string[] },
): Promise<{ events: number; targets: readonly WebhookTarget[] }> {
  return services.write(async tx => {
    const { events, webhooks } = await readUndispatched(tx, which)
    if (events.length === 0) return { events: 0, targets: [] }
    const { matched, pairs } = matchEvents(events, webhooks, MAX_DELIVERIES, services.log)
    const dispatched = events.slice(0, matched.length)
    for (const { take } of eventSubscribers.all()) await take(tx, services, dispatched)
    return { events: matched.length, targets: await completeDispatch(tx, matched, pairs) }
  })
}

/** Queues the next events individually, with retries and dead letters. */
async function deferEvents(services: Services): Promise<void> {
  await services.write(async tx => {
    for (const event_id of await deferDispatch(tx, BATCH)) tx.send(eventDispatchQueue, { event_id })
  })
}

export type Dispatcher = {
  /** Dispatches undispatched events. */
  wake(): void
  /** Stops after the current batch. */
  close(): Promise<void>
}

/** Creates the dispatcher of this process; `deliver` receives the webhooks with new deliveries. */
export function createDispatcher(services: Services, deliver: (targets: readonly WebhookTarget[]) => void): Dispatcher {
  let closed = false
  let woken = false
  let running: Promise<void> | null = null

  /** Dispatches one batch. Returns whether more events may be waiting. */
  const dispatchBatch = async (): Promise<boolean> => {
    const { seen, left: unmarked } = await markWithoutSubscribers(services.pool, BATCH)
    if (unmarked.length === 0) return seen === BATCH
    const { events, targets } = await dispatchEvents(services, { next: unmarked })
    if (targets.length > 0) deliver(targets)
    return events < unmarked.length || seen === BATCH
  }

  const run = async () => {
    while (woken && !closed) {
      woken = false
      try {
        while (!closed && (await runLoopOnce('event dispatch', BATCH_MS, dispatchBatch)));
      } catch (error) {
        if (isTransient(error) || error instanceof LoopStalledError) {
          services.log.warn({ err: error }, 'event dispatch failed, retrying')
          await sleep(RETRY_MS)
          woken = true
          continue
        }
        services.log.error({ err: error }, 'batch dispatch failed, events queued individually')
        try {
          await deferEvents(services)
          woken = true
        } catch (failure) {
          // The rows stay undispatched for the next sweep.
          services.log.error({ err: failure }, 'event deferral failed')
        }
      }
    }
  }

  const wake = () => {
    woken = true
    if (closed) return
    running ??= run().finally(() => {
      running = null
      if (woken) wake()
    })
  }

  return {
    wake,
    async close() {
      closed = true
      await running
    },
  }
}
