import type { Fragment } from '../../core/db/sql.ts'
import { DISPATCH_CHANNEL, eventDispatchQueue, type Tx } from '../../core/db/writer.ts'
import { type BackgroundTask, handler } from '../../core/jobs/handler.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { DeliveryLoop } from './delivery-loop.ts'
import { expireDeliveryLeases, type WebhookTarget, webhooksWithDue } from './delivery-store.ts'
import { createDispatcher, dispatchEvents } from './dispatch.ts'
import { payloadTarget, WEBHOOK_CHANNEL, webhookPayload } from './model.ts'

/** Wakes the loop of this process for webhooks, and other workers when it has no slot left. */
function deliver(services: Services, targets: readonly WebhookTarget[]): void {
  const loop = loopOf(services)
  const others = loop.full
  loop.wake(targets)
  // Every slot of this process is taken: a worker with room does not have to find the deliveries by its sweep.
  if (others)
    services.notifier.notify(
      ...targets.map(target => ({
        channel: WEBHOOK_CHANNEL,
        payload: webhookPayload(target.webhook_id, target.project_id),
      })),
    )
}

const loopOf = processSingleton(services => new DeliveryLoop(services))

export const dispatchHandler = handler(eventDispatchQueue, {}, async ({ event_id }, { services }) => {
  deliver(services, (await dispatchEvents(services, { ids: [event_id] })).targets)
})

/**
 * Dispatch and delivery of events in this process. Both are woken after the commit that made the work, and search for
 * it every WEBHOOK_SWEEP_INTERVAL_MS.
 */
export const deliveryQueueStats: BackgroundTask = {
  name: 'webhook deliveries',
  concern: 'delivery',
  start(services) {
    const { config, log, notifications, pool } = services
    const loop = loopOf(services)
    const dispatcher = createDispatcher(services, targets => deliver(services, targets))

    let sweeping = false
    const sweep = async () => {
      dispatcher.wake()
      if (sweeping) return
      sweeping = true
      try {
        loop.wake(await webhooksWithDue(pool))
      } catch (error) {
        log.error({ err: error }, 'due deliveries not searched for')
      }
      sweeping = false
    }

    const onReconnect = () => void sweep()
    const unlisten = [
      notifications.listen(DISPATCH_CHANNEL, dispatcher.wake, { onReconnect }),
      notifications.listen(WEBHOOK_CHANNEL, payload => loop.reload(payloadTarget(payload))),
    ]
    const interval = setInterval(sweep, config.WEBHOOK_SWEEP_INTERVAL_MS)
    // What was written before this process listened.
    Promise.all(unlisten.map(({ ready }) => ready)).then(sweep, () => {})

    return {
      async close() {
        clearInterval(interval)
        for (const end of unlisten) end()
        await dispatcher.close()
        await loop.close(Math.min(config.WEBHOOK_TIMEOUT_MS, config.SHUTDOWN_GRACE_MS))
      },
    }
  },
}

/** Has the deliveries of workers that are gone sent by others. */
export async function endDeliveryLeases(tx: Tx, isGone: (holder: Fragment) => Fragment): Promise<void> {
  for (const { webhook_id, project_id } of await expireDeliveryLeases(tx, isGone))
    tx.notify(WEBHOOK_CHANNEL, webhookPayload(webhook_id, project_id))
}
