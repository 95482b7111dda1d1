import { srn } from '#core/api/kind.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Logger } from '#core/base/log.ts'
import { eventAllowed } from '#core/iam/event-gate.ts'
import type { TagConditions } from '#core/iam/match.ts'
import { type CompiledDocument, compileDocument } from '#core/iam/policy.ts'
import { eventAliases, patternMatches } from '#core/writes/events.ts'
import type { WebhookSubscriber } from './delivery-store.ts'
import type { DispatchedEvent } from './event-subscribers.ts'

/**
 * Matches events with webhooks by pattern and policy. A webhook whose evaluation fails is skipped and logged. Events
 * are matched in order until their deliveries would exceed `limit`, but at least one.
 * @returns the ids of the matched events, and their pairs with webhooks
 */
export function matchEvents(
  events: readonly DispatchedEvent[],
  webhooks: readonly WebhookSubscriber[],
  limit: number,
  log: Logger,
): { matched: string[]; pairs: { event_id: string; webhook_id: string }[] } {
  const byProject = Map.groupBy(webhooks, webhook => webhook.project_id)
  const policies = new Map<WebhookSubscriber, CompiledDocument>()
  const matched: string[] = []
  const pairs: { event_id: string; webhook_id: string }[] = []
  for (const event of events) {
    const eventPairs: typeof pairs = []
    for (const webhook of byProject.get(event.project_id) ?? []) {
      try {
        if (!isSubscribed(webhook, event.name)) continue
        if (webhook.policy_id !== null && !webhookAllows(policies, webhook, event, log)) continue
        eventPairs.push({ event_id: event.id, webhook_id: webhook.id })
      } catch (error) {
        log.error({ err: error, webhook_id: webhook.id, event_id: event.id }, 'webhook skipped, matching failed')
      }
    }
    if (matched.length > 0 && pairs.length + eventPairs.length > limit) break
    matched.push(event.id)
    pairs.push(...eventPairs)
  }
  return { matched, pairs }
}

/** Whether a pattern of a webhook matches an event name. */
export const isSubscribed = ({ events }: Pick<WebhookSubscriber, 'events'>, name: string): boolean =>
  events.some(pattern => patternMatches(pattern, name))

function webhookAllows(
  policies: Map<WebhookSubscriber, CompiledDocument>,
  webhook: WebhookSubscriber,
  event: DispatchedEvent,
  log: Logger,
): boolean {
  let policy = policies.get(webhook)
  if (!policy) {
    policy = compileDocument(webhook.policy)
    policies.set(webhook, policy)
    if (!policy.valid)
      log.error({ webhook_id: webhook.id, policy_id: webhook.policy_id }, 'webhook policy invalid, event denied')
  }
  return policyAllowsEvent(policy, event, event.tags)
}

/** Whether a policy allows delivering an event. `tags` is the unvalidated `tags` field of its data. */
export const policyAllowsEvent = (policy: CompiledDocument, event: DispatchedEvent, tags: unknown): boolean =>
  eventAllowed(policy, {
    name: event.name,
    aliases: eventAliases(event.name),
    srn: srn(event.project_id, event.resource_type, event.resource_id),
    type: event.resource_type,
    tags: tagsOf(tags),
  })

/** Returns the string tags of event data, whose shape is not known. */
function tagsOf(value: unknown): TagConditions | null {
  if (!isObject(value)) return null
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  )
}
