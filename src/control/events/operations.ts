import { z } from 'zod'
import { invalid } from '../../core/api/errors.ts'
import { booleanQuery, listTable, pageOf, pageOfArray, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { type EventType, eventTypes } from '../../core/db/events.ts'
import { sql } from '../../core/db/sql.ts'
import { delivery, WebhookDelivery } from '../webhooks/model.ts'
import { findVisible, tellWorkers } from '../webhooks/operations.ts'
import { insertDelivery } from '../webhooks/store.ts'
import { Event, EventFamily, type EventRow, event, RedispatchInput } from './model.ts'

const tag = 'Events'

const list = operation({
  id: 'listEvents',
  method: 'get',
  path: '/events',
  summary: 'List events as they are sent to webhooks',
  tag,
  action: 'events:ListEvents',
  lists: event,
  query: z.object({
    project_id: textFilter,
    event: textFilter,
    resource_type: textFilter,
    resource_id: textFilter,
    custom: booleanQuery.optional(),
  }),
  answers: { 200: pageOf(Event) },
  // Index events_project.
  run: context => {
    const { query } = context
    return listTable<EventRow>(context, {
      table: 'events',
      where: [
        query.event !== undefined && sql.fragment`t.name = ${query.event}`,
        query.resource_type !== undefined && sql.fragment`t.resource_type = ${query.resource_type}`,
        query.resource_id !== undefined && sql.fragment`t.resource_id = ${query.resource_id}`,
        query.custom !== undefined && sql.fragment`t.custom = ${query.custom}`,
      ],
      present: event.present,
    })
  },
})

const prefixOf = ({ name }: EventType): string => name.slice(0, name.indexOf('.') + 1)

const registry = operation({
  id: 'listEventRegistry',
  method: 'get',
  path: '/events/registry',
  summary: 'List every event of this deployment by resource type',
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

const get = itemOperation(event, {
  id: 'getEvent',
  method: 'get',
  path: '/events/{event_id}',
  summary: 'Read an event',
  tag,
  action: 'events:GetEvent',
  answers: { 200: Event },
  run: async ({ resource }) => event.present(resource),
})

const redispatch = itemOperation(event, {
  id: 'redispatchEvent',
  method: 'post',
  path: '/events/{event_id}/redispatch',
  summary: 'Send a stored event to a webhook that never had it',
  description: 'Patterns and policy are not looked at.',
  tag,
  action: 'events:RedispatchEvent',
  body: RedispatchInput,
  answers: { 202: WebhookDelivery },
  async run({ tx, body, caller, resource }) {
    const target = await findVisible(tx, caller, body.webhook_id)
    if (target.project_id !== resource.project_id)
      invalid({ code: 'INVALID_VALUE', path: 'webhook_id', message: 'must name a webhook of the same project' })
    const row = await insertDelivery(tx, {
      webhook_id: target.id,
      event_id: resource.id,
      event_type: resource.name,
      envelope: resource.envelope,
      redelivery_of: null,
    })
    if (!row)
      return invalid({
        code: 'INVALID_VALUE',
        path: 'webhook_id',
        message: 'has a delivery of this event, which can be redelivered',
      })
    tellWorkers(tx, target)
    return delivery.present(row)
  },
})

export const eventOperations: Operation[] = [list, registry, get, redispatch]
