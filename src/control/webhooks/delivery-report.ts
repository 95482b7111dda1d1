import { Counter } from 'prom-client'
import type { Logger } from '#core/base/log.ts'
import type { DeliveryAttemptOutcome } from './deliver.ts'
import type { ClaimedDelivery } from './delivery-store.ts'

export const deliveryAttempts = new Counter({
  name: 'muster_deliveries_total',
  help: 'Webhook delivery attempts by outcome',
  labelNames: ['outcome'],
  registers: [],
})

/**
 * Counts and logs a delivery attempt.
 * @param decision `lost`: the attempt was made, but another worker claimed the delivery meanwhile
 */
export function logAttempt(
  log: Logger,
  delivery: ClaimedDelivery,
  outcome: DeliveryAttemptOutcome,
  ms: number,
  decision: DeliveryAttemptOutcome['decision'] | 'lost',
): void {
  deliveryAttempts.inc({ outcome: decision })
  const line = {
    delivery_id: delivery.id,
    webhook_id: delivery.webhook_id,
    project_id: delivery.project_id,
    event_id: delivery.event_id,
    event: delivery.event_type,
    attempt: delivery.attempts + 1,
    outcome: outcome.decision === 'done' ? 'completed' : outcome.counted ? 'failed' : outcome.decision,
    status: outcome.status_code,
    ms: Math.round(ms),
    decision,
    ...(decision === 'retry' ? { next_ms: Math.round(outcome.retry_ms ?? 0) } : {}),
    ...(outcome.decision === 'done' || outcome.status_code !== null ? {} : { reason: outcome.response_body }),
    ...(outcome.error === undefined ? {} : { err: outcome.error }),
  }
  if (outcome.error !== undefined) log.error(line, 'delivery attempt')
  else if (decision === 'done') log.info(line, 'delivery attempt')
  else log.warn(line, 'delivery attempt')
}
