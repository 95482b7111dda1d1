import { z } from 'zod'
import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { Fragment } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'

export const DispatchedEvent = z.object({
  id: z.string(),
  project_id: z.string(),
  name: z.string(),
  resource_type: z.string(),
  resource_id: z.string(),
  tags: z.unknown(),
})
/** An event being dispatched. `tags` are the tags in its data, read only if a webhook of the project has a policy. */
export type DispatchedEvent = z.output<typeof DispatchedEvent>

/** Subscriber of events other than webhooks. */
export type EventSubscriber = {
  /** Returns the condition that a project currently has subscribers; evaluated for every event. */
  active(project: Fragment): Fragment
  /** Processes events in the transaction that marks them as dispatched, so each event exactly once. */
  take(tx: Tx, services: Services, events: readonly DispatchedEvent[]): Promise<void>
}

export const eventSubscribers = extensionPoint<EventSubscriber>({
  name: 'event subscribers',
  folder: 'control/webhooks',
  description: 'Processes events that are dispatched, exactly once each, in addition to webhooks',
})
