import { z } from 'zod'
import { workQueue } from '#core/queues/queue.ts'

/** Usage for whose quantities no thread was free, sealed: it contains inputs and outputs of calls. */
export const quantityQueue = workQueue('usage.price_quantities', {
  message: z.object({ project_id: z.string(), idempotency_key: z.string(), sealed: z.string() }),
  project: ({ project_id }) => project_id,
  concern: 'delivery',
  retry: { limit: 8, delaySeconds: 5 },
})

export const sealedForQuantities = (message: { project_id: string; idempotency_key: string }) => ({
  kind: 'usage_quantities',
  id: message.idempotency_key,
  project_id: message.project_id,
})
