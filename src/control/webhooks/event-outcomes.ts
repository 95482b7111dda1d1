import type { z } from 'zod'
import type { Page } from '#core/api/operation.ts'
import type { Fragment, Queryable } from '#core/db/sql.ts'
import { compileDocument } from '#core/iam/policy.ts'
import type { DispatchedEvent } from './event-subscribers.ts'
import { isSubscribed, policyAllowsEvent } from './matching.ts'
import type { EventOutcome, EventWebhook } from './model.ts'
import { type EventWebhookRow, listEventWebhooks } from './store.ts'

/** A stored event, with the times of its creation and dispatch. */
type StoredEvent = DispatchedEvent & { created_at: string; dispatched_at: string | null }

/** Returns the outcome of an event for a webhook without a delivery of it, from the current webhook. */
function outcomeWithoutDelivery(webhook: EventWebhookRow, event: StoredEvent): EventOutcome {
  if (Date.parse(webhook.created_at) > Date.parse(event.created_at)) return 'created_later'
  if (!isSubscribed(webhook, event.name)) return 'not_subscribed'
  if (!webhook.active) return 'inactive'
  if (webhook.policy_id !== null && !policyAllowsEvent(compileDocument(webhook.policy), event, event.tags))
    return 'policy_denied'
  return event.dispatched_at === null ? 'queued' : 'inactive'
}

/** Returns a page of the outcomes of an event for the visible webhooks of its project, newest webhook first. */
export const eventOutcomes = (
  context: { db: Queryable; page: Page },
  event: StoredEvent,
  visible: Fragment,
  now: Date,
) =>
  listEventWebhooks(
    context,
    event,
    visible,
    (webhook): z.output<typeof EventWebhook> => ({
      webhook_id: webhook.id,
      name: webhook.name,
      outcome: webhook.status ?? outcomeWithoutDelivery(webhook, event),
      delivery_id: webhook.delivery_id,
      judged_at: webhook.delivery_id === null ? now.toISOString() : null,
    }),
  )
