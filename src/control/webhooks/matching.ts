import { srn } from '../../core/api/kind.ts'
import { eventAliases, patternMatches } from '../../core/db/events.ts'
import { eventAllowed } from '../../core/iam/event-gate.ts'
import type { TagConditions } from '../../core/iam/match.ts'
import { type CompiledDocument, compileDocument } from '../../core/iam/policy.ts'
import type { Logger } from '../../core/process/log.ts'
import type { Subscriber } from './delivery-store.ts'
import type { DispatchedEvent } from './event-subscribers.ts'

/**
 * Which webhooks want which events: pattern, then policy. One that cannot be evaluated is left out and logged; the
 * others are not affected by it. Events are matched in order while their deliveries are at most `limit`, at least one.
 * @returns the ids of the events that were matched, and who wants them
 */
export function matchEvents(
  events: readonly DispatchedEvent[],
  webhooks: readonly Subscriber[],
  limit: number,
  log: Logger,
): { matched: string[]; pairs: { event_id: string; webhook_id: string }[] } {
  const byProject = Map.groupBy(webhooks, webhook => webhook.project_id)
  const gates = new Map<Subscriber, CompiledDocument>()
  const matched: string[] = []
  const pairs: { event_id: string; webhook_id: string }[] = []
  for (const event of events) {
    const wanted: typeof pairs = []
    for (const webhook of byProject.get(event.project_id) ?? []) {
      try {
        if (!webhook.events.some(pattern => patternMatches(pattern, event.name))) continue
        if (webhook.policy_id !== null && !gateAllows(gates, webhook, event, log)) continue
        wanted.push({ event_id: event.id, webhook_id: webhook.id })
      } catch (error) {
        log.error({ err: error, webhook_id: webhook.id, event_id: event.id }, 'webhook left out of a dispatch')
      }
    }
    if (matched.length > 0 && pairs.length + wanted.length > limit) break
    matched.push(event.id)
    pairs.push(...wanted)
  }
  return { matched, pairs }
}

function gateAllows(
  gates: Map<Subscriber, CompiledDocument>,
  webhook: Subscriber,
  event: DispatchedEvent,
  log: Logger,
): boolean {
  let gate = gates.get(webhook)
  if (!gate) {
    gate = compileDocument(webhook.policy)
    gates.set(webhook, gate)
    if (!gate.valid)
      log.error(
        { webhook_id: webhook.id, policy_id: webhook.policy_id },
        'policy of a webhook does not parse: it denies',
      )
  }
  return policyAllowsEvent(gate, event, event.tags)
}

/** Whether a policy lets its subscriber see an event. `tags` are those of its data, whatever they are. */
export const policyAllowsEvent = (gate: CompiledDocument, event: DispatchedEvent, tags: unknown): boolean =>
  eventAllowed(gate, {
    name: event.name,
    aliases: eventAliases(event.name),
    srn: srn(event.project_id, event.resource_type, event.resource_id),
    type: event.resource_type,
    tags: tagsOf(tags),
  })

/** Tags of event data; data has whatever shape its resource has. */
function tagsOf(value: unknown): TagConditions | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  )
}
