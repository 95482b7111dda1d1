import { z } from 'zod'
import { listAllowed, listTargetOf, raiseForbidden, visibleRows } from '#core/api/access.ts'
import { BY_NEWEST_ID } from '#core/api/across.ts'
import { columnFilter, equalsFilter, flagFilter } from '#core/api/filters.ts'
import { pageOf, pageOfArray, queryValues } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { idFloor } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { readEnvelope } from '#core/writes/event-envelopes.ts'
import { type EventType, eventTypes, patternMatches } from '#core/writes/events.ts'
import { eventOutcomes } from '../webhooks/event-outcomes.ts'
import { withFactsRedacted } from '../webhooks/facts.ts'
import { deliveryKind, EventWebhook, pattern, WebhookDelivery, webhookKind } from '../webhooks/model.ts'
import { findVisibleWebhook, notifyWorkers } from '../webhooks/operations.ts'
import { insertDelivery } from '../webhooks/store.ts'
import { EventFamily, eventKind, RedispatchInput } from './model.ts'
import { lockEventText } from './store.ts'

const tag = 'Events'

const events = resource(eventKind, { path: '/events', tag })

/** Tolerance between the time in an event id and its `created_at`, for clock skew. */
const CLOCK_SKEW_MS = 60_000

/** Matches events by patterns, as webhooks do. A single value is a list of one. */
const patternsFilter = columnFilter(
  z
    .preprocess(queryValues, z.array(pattern).min(1).max(100))
    .optional()
    .describe(
      'Event pattern, as of a webhook; repeat the parameter to match any of several',
    ) as unknown as z.ZodOptional<z.ZodArray<typeof pattern>>,
  patterns => {
    if (patterns.includes('*')) return null
    const names = eventTypes
      .all()
      .flatMap(({ name }) => (patterns.some(each => patternMatches(each, name)) ? [name] : []))
    const prefixes = patterns.filter(each => each.endsWith('.*')).map(each => each.slice(0, -1))
    return sql.fragment`(
      t.name = any(${sql.array([...names, ...patterns], 'text')})
      or exists (select from unnest(${sql.array(prefixes, 'text')}) p where starts_with(t.name, p)))`
  },
)

const eventPrefix = ({ name }: EventType): string => name.slice(0, name.indexOf('.') + 1)

const registry = operation({
  id: 'listEventRegistry',
  method: 'get',
  path: '/events/registry',
  summary: 'List event types',
  description: 'Event names by resource type; patterns of webhooks and triggers match against them.',
  tag,
  gate: 'any',
  byDefinitions: true,
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

const listEventWebhooks = itemOperation(eventKind, {
  id: 'listEventWebhooks',
  method: 'get',
  path: '/events/{event_id}/webhooks',
  summary: 'List the webhooks of an event',
  description: 'Returns the outcome of the event for each webhook of its project that webhooks:ListWebhooks allows.',
  tag,
  action: 'events:GetEvent',
  alsoActions: ['webhooks:ListWebhooks'],
  paged: true,
  timed: false,
  answers: { 200: pageOf(EventWebhook) },
  run({ db, caller, resource, page, services }) {
    const { project_id } = resource
    const request = { action: 'webhooks:ListWebhooks', ...listTargetOf(webhookKind) }
    if (!listAllowed(caller, request.action, request, project_id)) raiseForbidden(caller, request.action)
    const columns = { project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }
    const { rows } = visibleRows(caller, { ...request, project: project_id }, columns)
    const { resource_type, resource_id, data } = parseExactJson(readEnvelope(resource))
    const event = { ...resource, resource_type, resource_id, tags: data.tags }
    return eventOutcomes({ db, page }, event, rows, services.clock.now())
  },
})

export const eventOperations: Operation[] = [
  // events_project, or the primary key over all projects: ids rise with time.
  withFactsRedacted(
    events.list({
      replica: true,
      order: ({ project }) => (project === null ? sql.fragment`t.id desc` : undefined),
      across: { order: BY_NEWEST_ID },
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
        pattern: patternsFilter,
        resource_type: equalsFilter('resource_type'),
        resource_id: equalsFilter('resource_id'),
        custom: flagFilter('custom'),
      },
    }),
  ),
  registry,
  withFactsRedacted(events.get()),
  listEventWebhooks,
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
