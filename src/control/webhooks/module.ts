import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { leaseHolding } from '#core/work/takeover.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { subscriberConditions } from '#core/writes/writer.ts'
import { deliveryAttempts } from './delivery-report.ts'
import { deliverySlots } from './delivery-slots.ts'
import { hasWebhook, oldestDelivery } from './delivery-store.ts'
import { deliveryTask, dispatchHandler, endDeliveryLeases } from './handlers.ts'
import { deliveryKind, webhookKind, webhookSecrets } from './model.ts'
import { webhookOperations } from './operations.ts'
import { pruneDeliveries } from './retention.ts'

export default module('webhooks', {
  tags: { Webhooks: 'Signed deliveries of events to URLs.' },
  kinds: [webhookKind, deliveryKind],
  resourceTypes: [
    resourceType(webhookKind, {
      defaults: { active: true },
      attributes: { secret: { read: 'getWebhookSecret', field: 'secret' } },
      exported: ({ task_id }) => task_id === null,
    }),
  ],
  operations: webhookOperations,
  handlers: [dispatchHandler],
  background: [deliveryTask],
  extensions: [
    leaseHolding.with(endDeliveryLeases),
    subscriberConditions.with(hasWebhook),
    waitingRows.with({ concern: 'delivery', since: oldestDelivery }),
  ],
  sealedColumns: webhookSecrets,
  metrics: [deliveryAttempts, deliverySlots],
  sweeps: [{ name: 'webhook deliveries', when: '41 3 * * *', run: pruneDeliveries }],
})
