import { z } from 'zod'
import type { Fragment } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'

export const DispatchedEvent = z.object({
  id: z.string(),
  project_id: z.string(),
  name: z.string(),
  resource_type: z.string(),
  resource_id: z.string(),
  tags: z.unknown(),
})
/** An event on its way. `tags` are those of its data, read only where the policy of a webhook may ask for them. */
export type DispatchedEvent = z.output<typeof DispatchedEvent>

/** Who wants events beside webhooks. */
export type EventSubscriber = {
  /** The condition that a project has such subscribers now; asked of every event that may have consumers. */
  active(project: Fragment): Fragment
  /** Takes events in the transaction that marks them as dispatched: each once, unless it is rolled back. */
  take(tx: Tx, services: Services, events: readonly DispatchedEvent[]): Promise<void>
}

export const eventSubscribers = extensionPoint<EventSubscriber>('event subscribers')
