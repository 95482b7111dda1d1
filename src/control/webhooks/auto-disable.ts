import type { Services } from '#core/base/services.ts'
import { fileExceptionInTx } from '../exceptions/file-exception.ts'
import type { DeliveryAttemptOutcome } from './deliver.ts'
import { type ClaimedDelivery, countFailures } from './delivery-store.ts'
import { webhookKind } from './model.ts'

/** A webhook is disabled after this many consecutive failed deliveries over at least FAILING_MS. */
const MAX_FAILURES = 100
const FAILING_MS = 24 * 60 * 60 * 1000

/**
 * Counts consecutive failed deliveries, and disables webhooks that keep failing and files an exception for each.
 * Recording a success has already reset the count.
 * @param ended deliveries with the outcome of their attempt, in order of completion
 */
export async function disableFailing(
  services: Services,
  ended: readonly { delivery: ClaimedDelivery; outcome: DeliveryAttemptOutcome }[],
): Promise<void> {
  const failures = new Map<string, number>()
  for (const { delivery, outcome } of ended) {
    const { webhook_id } = delivery
    if (outcome.status === 'failed') failures.set(webhook_id, (failures.get(webhook_id) ?? 0) + 1)
    else if (outcome.status === 'completed') failures.delete(webhook_id)
  }
  if (failures.size === 0) return
  const now = services.clock.now()
  const since = new Date(now.getTime() - FAILING_MS)
  const failing = await countFailures(services.pool, failures, now, { limit: MAX_FAILURES, since })
  if (!services.config.WEBHOOK_AUTO_DISABLE) return
  for (const id of failing) await disableWebhook(services, id)
}

async function disableWebhook(services: Services, id: string): Promise<void> {
  await services.write(async tx => {
    const before = await webhookKind.find(tx, id, true)
    if (!before?.active) return
    const row = await webhookKind.update(tx, id, { active: false })
    tx.emit(webhookKind, 'updated', row)
    fileExceptionInTx(tx, {
      project_id: before.project_id,
      kind: 'webhook_failing',
      title: `Webhook ${before.name} was disabled after repeated delivery failures`,
      detail: { webhook_id: id, name: before.name, failures: before.failures, failing_since: before.failing_since },
      dedup_key: id,
    })
    services.log.warn(
      { webhook_id: id, project_id: row.project_id },
      'webhook disabled after repeated delivery failures',
    )
  })
}
