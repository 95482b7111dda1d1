import { raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, flagFilter } from '../../core/api/filters.ts'
import { idFloor } from '../../core/api/ids.ts'
import { pageOf, pageOfArray } from '../../core/api/lists.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type EventType, eventTypes } from '../../core/db/events.ts'
import { sql } from '../../core/db/sql.ts'
import { withFactsRedacted } from '../webhooks/facts.ts'
import { deliveryKind, WebhookDelivery } from '../webhooks/model.ts'
import { findVisibleWebhook, notifyWorkers } from '../webhooks/operations.ts'
import { insertDelivery } from '../webhooks/store.ts'
import { EventFamily, eventKind, RedispatchInput } from './model.ts'
import { lockEventText } from './store.ts'

const tag = 'Events'

const events = resource(eventKind, { path: '/events', tag })

/** Tolerance between the time in an event id and its `created_at`, for clock skew. */
const CLOCK_SKEW_MS = 60_000

const eventPrefix = ({ name }: EventType): string => name.slice(0, name.indexOf('.') + 1)

const registry = operation({
  id: 'listEventRegistry',
  method: 'get',
  path: '/events/registry',
  summary: 'List event types',
  description: 'Event names by resource type; patterns of webhooks and triggers match against them.',
  tag,
  gate: 'any',
  paged: true,
  timed: false,
  answers: { 200: pageOf(EventFamily) },
  run: async context =>
    pageOfArray(
      [...Map.groupBy(eventTypes.all(), eventPrefix)].map(([prefix, events]) => ({
        resource_type: events[0].resource_type,
        prefix,
        events: events.map(({ name, aliases }) => ({ name, aliases })),
        notes: events[0].notes,
      })),
      context.page,
    ),
})

export const eventOperations: Operation[] = [
  // events_project, or the primary key over all projects: ids rise with time.
  withFactsRedacted(
    events.list({
      order: ({ project }) => (project === null ? sql.fragment`t.id desc` : undefined),
      where: ({ project, page: { from, to } }) =>
        project === null
          ? [
              from && sql.fragment`t.id >= ${idFloor(eventKind.prefix, new Date(from.getTime() - CLOCK_SKEW_MS))}`,
              to && sql.fragment`t.id < ${idFloor(eventKind.prefix, new Date(to.getTime() + CLOCK_SKEW_MS))}`,
            ]
          : [],
      summary: 'List events',
      description: 'Returns the envelopes delivered to webhooks, including events without any subscribed webhook.',
      filters: {
        event: equalsFilter('name'),
        resource_type: equalsFilter('resource_type'),
        resource_id: equalsFilter('resource_id'),
        custom: flagFilter('custom'),
      },
    }),
  ),
  registry,
  withFactsRedacted(events.get()),
  events.action('redispatch', {
    summary: 'Redispatch an event',
    description:
      'Sends a stored event to a webhook that has no delivery of it. Event patterns and policies are not evaluated.',
    body: RedispatchInput,
    answers: { 202: WebhookDelivery },
    async run({ tx, body, caller, resource }) {
      const webhook = await findVisibleWebhook(tx, caller, body.webhook_id)
      if (webhook.project_id !== resource.project_id)
        raiseInvalid({ code: 'INVALID_VALUE', path: 'webhook_id', message: 'must be a webhook in the same project' })
      const row = await insertDelivery(tx, {
        webhook_id: webhook.id,
        event_id: resource.id,
        event_type: resource.name,
        envelope: await lockEventText(tx, resource.id),
        redelivery_of: null,
      })
      if (!row)
        return raiseInvalid({
          code: 'INVALID_VALUE',
          path: 'webhook_id',
          message: 'already has a delivery of this event, redeliver that delivery',
        })
      notifyWorkers(tx, webhook)
      return deliveryKind.present(row)
    },
  }),
]
