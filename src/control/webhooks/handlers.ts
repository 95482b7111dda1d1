import type { Fragment } from '../../core/db/sql.ts'
import { DISPATCH_CHANNEL, eventDispatchQueue, type Tx } from '../../core/db/writer.ts'
import { type BackgroundTask, handler } from '../../core/jobs/handler.ts'
import { exclusiveLoop } from '../../core/process/loop.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { DeliveryLoop } from './delivery-loop.ts'
import { expireDeliveryLeases, listWebhooksWithDue, type WebhookTarget } from './delivery-store.ts'
import { createDispatcher, dispatchEvents } from './dispatch.ts'
import { parseWebhookPayload, WEBHOOK_CHANNEL, webhookPayload } from './model.ts'

/** Wakes the delivery loop of this process, and notifies other workers if it has no free slot. */
function wakeDeliveries(services: Services, targets: readonly WebhookTarget[]): void {
  const loop = deliveryLoop(services)
  const isFull = loop.full
  loop.wake(targets)
  if (isFull)
    services.notifier.notify(
      ...targets.map(target => ({
        channel: WEBHOOK_CHANNEL,
        payload: webhookPayload(target.webhook_id, target.project_id),
      })),
    )
}

const deliveryLoop = processSingleton(services => new DeliveryLoop(services))

export const dispatchHandler = handler(eventDispatchQueue, {}, async ({ event_id }, { services }) => {
  wakeDeliveries(services, (await dispatchEvents(services, { ids: [event_id] })).targets)
})

/**
 * Dispatches and delivers events in this process. A notification on commit wakes both; a sweep every
 * WEBHOOK_SWEEP_INTERVAL_MS covers lost notifications.
 */
export const deliveryTask: BackgroundTask = {
  name: 'webhook deliveries',
  concern: 'delivery',
  start(services) {
    const { config, log, notifications, pool } = services
    const loop = deliveryLoop(services)
    const dispatcher = createDispatcher(services, targets => wakeDeliveries(services, targets))

    const periodMs = config.WEBHOOK_SWEEP_INTERVAL_MS
    const wakeDue = exclusiveLoop('delivery sweep', { periodMs, log }, async () =>
      loop.wake(await listWebhooksWithDue(pool)),
    )
    const sweep = () => {
      dispatcher.wake()
      return wakeDue()
    }

    const onReconnect = () => void sweep()
    const unsubscribes = [
      notifications.listen(DISPATCH_CHANNEL, dispatcher.wake, { onReconnect }),
      notifications.listen(WEBHOOK_CHANNEL, payload => loop.reload(parseWebhookPayload(payload))),
    ]
    const interval = setInterval(sweep, periodMs)
    // Covers rows written before this process subscribed.
    Promise.all(unsubscribes.map(({ ready }) => ready)).then(sweep, () => {})

    return {
      async close() {
        clearInterval(interval)
        for (const unsubscribe of unsubscribes) unsubscribe()
        await dispatcher.close()
        await loop.close(Math.min(config.WEBHOOK_TIMEOUT_MS, config.SHUTDOWN_GRACE_MS))
      },
    }
  },
}

/** Expires the delivery leases of dead workers and notifies the others. */
export async function endDeliveryLeases(tx: Tx, isGone: (holder: Fragment) => Fragment): Promise<void> {
  for (const { webhook_id, project_id } of await expireDeliveryLeases(tx, isGone))
    tx.notify(WEBHOOK_CHANNEL, webhookPayload(webhook_id, project_id))
}
