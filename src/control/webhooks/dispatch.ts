import { inTransaction } from '../../core/db/pool.ts'
import { dispatchQueue } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import {
  deferDispatch,
  finishDispatch,
  markWithoutSubscribers,
  readUndispatched,
  type Target,
} from './delivery-store.ts'
import { matchEvents } from './matching.ts'

/** Events of one transaction of the dispatcher. */
const BATCH = 200

/**
 * Dispatches events: one transaction selects their consumers, queues the deliveries and marks the events, so that a
 * second run adds nothing (control, 1.3).
 * @param which the oldest ones that nobody else dispatches, or those named
 * @returns how many events were dispatched, and the webhooks with something new to send
 */
export async function dispatchEvents(
  services: Services,
  which: { limit: number } | { ids: readonly string[] },
): Promise<{ events: number; targets: readonly Target[] }> {
  return inTransaction(services.pool, async db => {
    const { events, webhooks } = await readUndispatched(db, which)
    if (events.length === 0) return { events: 0, targets: [] }
    const pairs = matchEvents(events, webhooks, services.log)
    const ids = events.map(event => event.id)
    return { events: events.length, targets: await finishDispatch(db, ids, pairs) }
  })
}

/** Gives the events at the head of the line to a queue, each alone, with retries and dead letters. */
async function defer(services: Services): Promise<void> {
  await services.write(async tx => {
    for (const event_id of await deferDispatch(tx, BATCH)) tx.send(dispatchQueue, { event_id })
  })
}

export type Dispatcher = {
  /** Looks for undispatched events now, or again when it is looking. */
  wake(): void
  /** Ends after the batch at hand. */
  close(): Promise<void>
}

/** Runs dispatch in this process whenever it is woken; `deliver` is told what there is to send. */
export function createDispatcher(services: Services, deliver: (targets: readonly Target[]) => void): Dispatcher {
  let closed = false
  let woken = false
  let running: Promise<void> | null = null

  /** One batch. Answers whether more may be waiting. */
  const batch = async (): Promise<boolean> => {
    const { seen, left } = await markWithoutSubscribers(services.pool, BATCH)
    if (left === 0) return seen === BATCH
    const { targets } = await dispatchEvents(services, { limit: BATCH })
    if (targets.length > 0) deliver(targets)
    return seen === BATCH
  }

  const run = async () => {
    while (woken && !closed) {
      woken = false
      try {
        while (!closed && (await batch()));
      } catch (error) {
        services.log.error({ err: error }, 'dispatch failed, its events go on one by one')
        try {
          await defer(services)
          woken = true
        } catch (failure) {
          // Nothing is lost: the rows stay undispatched and the next sweep looks again.
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
