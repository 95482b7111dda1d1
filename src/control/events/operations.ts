import { raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, flagFilter } from '../../core/api/filters.ts'
import { idFloor } from '../../core/api/ids.ts'
import { pageOf, pageOfArray } from '../../core/api/lists.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type EventType, eventTypes } from '../../core/db/events.ts'
import { sql } from '../../core/db/sql.ts'
import { factsLeftOut } from '../webhooks/facts.ts'
import { deliveryKind, WebhookDelivery } from '../webhooks/model.ts'
import { findVisibleWebhook, notifyWorkers } from '../webhooks/operations.ts'
import { insertDelivery } from '../webhooks/store.ts'
import { EventFamily, eventKind, RedispatchInput } from './model.ts'
import { lockEventText } from './store.ts'

const tag = 'Events'

const events = resource(eventKind, { path: '/events', tag })

/** More than an event's id and its time lie apart, unless a clock was set back by more. */
const CLOCKS_MS = 60_000

const prefixOf = ({ name }: EventType): string => name.slice(0, name.indexOf('.') + 1)

const registry = operation({
  id: 'listEventRegistry',
  method: 'get',
  path: '/events/registry',
  summary: 'List every event of this deployment by resource type',
  description: 'The names that patterns of webhooks and triggers can match.',
  tag,
  gate: 'any',
  paged: true,
  timed: false,
  answers: { 200: pageOf(EventFamily) },
  run: async context =>
    pageOfArray(
      [...Map.groupBy(eventTypes.all(), prefixOf)].map(([prefix, events]) => ({
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
  factsLeftOut(
    events.list({
      order: ({ project }) => (project === null ? sql.fragment`t.id desc` : undefined),
      where: ({ project, page: { from, to } }) =>
        project === null
          ? [
              from && sql.fragment`t.id >= ${idFloor(eventKind.prefix, new Date(from.getTime() - CLOCKS_MS))}`,
              to && sql.fragment`t.id < ${idFloor(eventKind.prefix, new Date(to.getTime() + CLOCKS_MS))}`,
            ]
          : [],
      summary: 'List events as they are sent to webhooks',
      description: 'With the envelope as webhooks get it, whether or not any webhook subscribed.',
      filters: {
        event: equalsFilter('name'),
        resource_type: equalsFilter('resource_type'),
        resource_id: equalsFilter('resource_id'),
        custom: flagFilter('custom'),
      },
    }),
  ),
  registry,
  factsLeftOut(events.get()),
  events.action('redispatch', {
    summary: 'Send a stored event to a webhook that never had it',
    description: 'Patterns and policy are not evaluated.',
    body: RedispatchInput,
    answers: { 202: WebhookDelivery },
    async run({ tx, body, caller, resource }) {
      const target = await findVisibleWebhook(tx, caller, body.webhook_id)
      if (target.project_id !== resource.project_id)
        raiseInvalid({ code: 'INVALID_VALUE', path: 'webhook_id', message: 'must name a webhook of the same project' })
      const row = await insertDelivery(tx, {
        webhook_id: target.id,
        event_id: resource.id,
        event_type: resource.name,
        envelope: await lockEventText(tx, resource.id),
        redelivery_of: null,
      })
      if (!row)
        return raiseInvalid({
          code: 'INVALID_VALUE',
          path: 'webhook_id',
          message: 'has a delivery of this event, which can be redelivered',
        })
      notifyWorkers(tx, target)
      return deliveryKind.present(row)
    },
  }),
]
