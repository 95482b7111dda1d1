import { module } from '../../core/api/module.ts'
import { deliveries, dispatchHandler } from './handlers.ts'
import { delivery, webhook, webhookSecrets } from './model.ts'
import { webhookOperations } from './operations.ts'
import { pruneDeliveries } from './retention.ts'

export default module('webhooks', {
  kinds: [webhook, delivery],
  operations: webhookOperations,
  handlers: [dispatchHandler],
  background: [deliveries],
  sealedColumns: webhookSecrets,
  sweeps: [{ name: 'webhook deliveries', when: '41 3 * * *', run: pruneDeliveries }],
})
