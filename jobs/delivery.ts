import { notifyWebhooks, type Target, webhooksWithDue } from '../src/control/webhooks/delivery-store.ts'
import { createDispatcher, dispatchEvents } from '../src/control/webhooks/dispatch.ts'
import { payloadTarget, WEBHOOK_CHANNEL } from '../src/control/webhooks/model.ts'
import { Pump } from '../src/control/webhooks/pump.ts'
import { DISPATCH_CHANNEL, dispatchQueue } from '../src/core/db/write.ts'
import { actor } from '../src/core/jobs/worker.ts'
import type { Services } from '../src/core/process/services.ts'
import type { Concern } from './concern.ts'

/**
 * Dispatch and delivery of events in this process. Both are told what to look at by the statement that made it, and
 * look for themselves every WEBHOOK_SWEEP_INTERVAL_MS.
 */
export function deliveryActors(services: Services): Concern {
  const { config, log, notifications, pool } = services
  const pump = new Pump(services)
  const deliver = (targets: readonly Target[]) => {
    const others = pump.full
    pump.look(targets)
    // Every slot of this process is taken: a worker with room does not have to find the deliveries by its sweep.
    if (others)
      notifyWebhooks(pool, targets).catch(error => log.error({ err: error }, 'workers not told of deliveries'))
  }
  const dispatcher = createDispatcher(services, deliver)

  let sweeping = false
  const sweep = async () => {
    dispatcher.wake()
    if (sweeping) return
    sweeping = true
    try {
      pump.look(await webhooksWithDue(pool))
    } catch (error) {
      log.error({ err: error }, 'due deliveries not looked for')
    }
    sweeping = false
  }

  const onReconnect = () => void sweep()
  const unlisten = [
    notifications.listen(DISPATCH_CHANNEL, dispatcher.wake, { onReconnect }),
    notifications.listen(WEBHOOK_CHANNEL, payload => pump.refresh(payloadTarget(payload))),
  ]
  const interval = setInterval(sweep, config.WEBHOOK_SWEEP_INTERVAL_MS)
  // What was written before this process listened.
  Promise.all(unlisten.map(({ ready }) => ready)).then(sweep, () => {})

  return {
    actors: [
      actor(dispatchQueue, {}, async ({ event_id }) => {
        deliver((await dispatchEvents(services, { ids: [event_id] })).targets)
      }),
    ],
    ticks: [],
    async close() {
      clearInterval(interval)
      for (const end of unlisten) end()
      await dispatcher.close()
      await pump.close(Math.min(config.WEBHOOK_TIMEOUT_MS, config.SHUTDOWN_GRACE_MS))
    },
  }
}
