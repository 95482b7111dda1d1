import { AppError } from '#core/base/errors.ts'
import { exclusiveLoop } from '#core/base/loop.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Fragment } from '#core/db/sql.ts'
import { type BackgroundTask, handler } from '#core/work/handler.ts'
import { DISPATCH_CHANNEL, eventDispatchQueue, type Tx } from '#core/writes/writer.ts'
import { fileExceptionInTx } from '../exceptions/file-exception.ts'
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
  start(services, onSuspects) {
    const { config, log, notifications, pool } = services
    const loop = deliveryLoop(services)
    const dispatcher = createDispatcher(services, targets => wakeDeliveries(services, targets))

    const periodMs = config.WEBHOOK_SWEEP_INTERVAL_MS
    const wakeDue = exclusiveLoop('delivery sweep', { periodMs, log }, async () => {
      const { targets, suspects } = await listWebhooksWithDue(pool)
      loop.wake(targets)
      if (suspects) onSuspects()
    })
    const sweep = () => {
      dispatcher.wake()
      return wakeDue()
    }

    const onReconnect = () => void sweep()
    const unsubscribes = [
      notifications.listen(DISPATCH_CHANNEL, dispatcher.wake, { onReconnect }),
      notifications.listen(WEBHOOK_CHANNEL, payload => loop.reload(parseWebhookPayload(payload))),
      notifications.listen(SUSPECTS_CHANNEL, onSuspects),
    ]
    const interval = setInterval(sweep, periodMs)
    // Covers rows written before this process subscribed.
    Promise.all(unsubscribes.map(({ ready }) => ready)).then(sweep, () => {})

    return {
      suspects: loop,
      async close(mostMs = Number.POSITIVE_INFINITY) {
        clearInterval(interval)
        for (const unsubscribe of unsubscribes) unsubscribe()
        await dispatcher.close()
        await loop.close(Math.min(config.WEBHOOK_TIMEOUT_MS, config.SHUTDOWN_GRACE_MS, mostMs))
      },
    }
  },
}

/** Channel notified when deliveries of a lost worker are suspects. */
const SUSPECTS_CHANNEL = 'muster_delivery_suspects'

/**
 * Expires the delivery leases of dead workers, fails the deliveries that ended their workers with an exception, and notifies
 * the other workers.
 */
export async function endDeliveryLeases(
  tx: Tx,
  isGone: (holder: Fragment) => Fragment,
  { log }: Pick<Services, 'log'>,
): Promise<void> {
  const { code, message } = new AppError('WORKER_LOST')
  const ended = await expireDeliveryLeases(tx, isGone, `${code}: ${message}`)
  for (const { webhook_id, project_id, delivery_id, event_id, worker_losses, failed } of ended) {
    tx.notify(WEBHOOK_CHANNEL, webhookPayload(webhook_id, project_id))
    if (delivery_id === null) continue
    const ids = { delivery_id, webhook_id, event_id }
    const decision = failed ? 'failed' : 'retry'
    log.warn({ ...ids, project_id, losses: worker_losses, decision }, 'delivery lost with its worker')
    if (!failed) tx.notify(SUSPECTS_CHANNEL, '')
    else
      fileExceptionInTx(tx, {
        project_id,
        kind: 'worker_lost',
        title: 'A webhook delivery ended its workers',
        detail: { code, ...ids },
        dedup_key: delivery_id,
      })
  }
}
