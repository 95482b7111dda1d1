import { setTimeout as sleep } from 'node:timers/promises'
import { isTransient } from '../../core/db/database-errors.ts'
import { eventDispatchQueue } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import {
  deferDispatch,
  finishDispatch,
  markWithoutSubscribers,
  readUndispatched,
  type WebhookTarget,
} from './delivery-store.ts'
import { eventSubscribers } from './event-subscribers.ts'
import { matchEvents } from './matching.ts'

/** Most events and deliveries of one transaction of the dispatcher; an event alone may have more deliveries. */
const BATCH = 200
const DELIVERIES = 5000

/** The pause before a batch that the database failed is dispatched again. */
const UNAVAILABLE_MS = 500

/**
 * Dispatches events: one transaction selects their consumers, queues the deliveries and marks the events, so that a
 * second run adds nothing.
 * @param which those of a batch that nobody else dispatches, or those that have to be
 * @returns how many events were dispatched, and the webhooks with something new to send
 */
export async function dispatchEvents(
  services: Services,
  which: { next: readonly string[] } | { ids: readonly string[] },
): Promise<{ events: number; targets: readonly WebhookTarget[] }> {
  return services.write(async tx => {
    const { events, webhooks } = await readUndispatched(tx, which)
    if (events.length === 0) return { events: 0, targets: [] }
    const { matched, pairs } = matchEvents(events, webhooks, DELIVERIES, services.log)
    const taken = events.slice(0, matched.length)
    for (const { take } of eventSubscribers.all()) await take(tx, services, taken)
    return { events: matched.length, targets: await finishDispatch(tx, matched, pairs) }
  })
}

/** Sends the next events to a queue, each alone, with retries and dead letters. */
async function defer(services: Services): Promise<void> {
  await services.write(async tx => {
    for (const event_id of await deferDispatch(tx, BATCH)) tx.send(eventDispatchQueue, { event_id })
  })
}

export type Dispatcher = {
  /** There may be undispatched events. */
  wake(): void
  /** Ends after the batch at hand. */
  close(): Promise<void>
}

/** Runs dispatch in this process whenever it is woken; `deliver` gets the webhooks with something new to send. */
export function createDispatcher(services: Services, deliver: (targets: readonly WebhookTarget[]) => void): Dispatcher {
  let closed = false
  let woken = false
  let running: Promise<void> | null = null

  /** One batch. Returns whether more may be waiting. */
  const batch = async (): Promise<boolean> => {
    const { seen, left } = await markWithoutSubscribers(services.pool, BATCH)
    if (left.length === 0) return seen === BATCH
    const { events, targets } = await dispatchEvents(services, { next: left })
    if (targets.length > 0) deliver(targets)
    return events < left.length || seen === BATCH
  }

  const run = async () => {
    while (woken && !closed) {
      woken = false
      try {
        while (!closed && (await batch()));
      } catch (error) {
        if (isTransient(error)) {
          services.log.warn({ err: error }, 'events not dispatched yet')
          await sleep(UNAVAILABLE_MS)
          woken = true
          continue
        }
        services.log.error({ err: error }, 'dispatch failed, its events go on one by one')
        try {
          await defer(services)
          woken = true
        } catch (failure) {
          // Nothing is lost: the rows stay undispatched and the next sweep finds them.
          services.log.error({ err: failure }, 'events not deferred')
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
