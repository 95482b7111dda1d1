import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, filterConditions, filterSchema, flagFilter, oneOf } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf, srn } from '../../core/api/kind.ts'
import { maintainedCount, pageOf, pageResult, parseTime } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { makeEvent } from '../../core/db/events.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { addressProblems } from '../../core/net/refused-address.ts'
import type { Services } from '../../core/process/services.ts'
import { factsLeftOut } from './facts.ts'
import {
  type DeliveryRow,
  deliveryKind,
  deliveryStatuses,
  RedeliverInput,
  RedeliverResult,
  RotateWebhookSecretInput,
  sealedForWebhook,
  WEBHOOK_CHANNEL,
  WebhookDelivery,
  WebhookInput,
  WebhookPatch,
  type WebhookRow,
  WebhookSecret,
  WebhookWithSecret,
  webhookKind,
  webhookPayload,
} from './model.ts'
import { newWebhookSecret } from './secret.ts'
import {
  countLockedWebhooks,
  insertDelivery,
  insertRedeliveries,
  insertWebhook,
  isRedeliverable,
  rotateWebhookSecret,
} from './store.ts'

const tag = 'Webhooks'
const MAX_REDELIVERIES = 1000

const gone = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id } })

type Named = { id: string; project_id: string }

/** Has workers send what is due of a webhook, once the transaction commits. */
export const notifyWorkers = (tx: Tx, row: Named): void =>
  tx.notify(WEBHOOK_CHANNEL, webhookPayload(row.id, row.project_id))

/** Has workers read a webhook anew with the commit: what they have claimed by its old address, secret and state is not sent. */
const reloadWebhook = (tx: Tx, row: Named): void =>
  tx.invalidate(WEBHOOK_CHANNEL, webhookPayload(row.id, row.project_id))

/** The webhook a query or body names; one that the caller may not know of does not exist. */
export async function findVisibleWebhook(db: Queryable, caller: Caller, id: string): Promise<WebhookRow> {
  const row = isIdOf(webhookKind, id) ? await webhookKind.find(db, id) : null
  return row && canSeeProject(caller, row.project_id) ? row : gone(id)
}

function secretOf({ secrets }: Services, { id, project_id, sealed_secret }: WebhookRow): string {
  const opened = secrets.open(sealed_secret, sealedForWebhook(id, project_id))
  return opened.ok ? opened.value : raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
}

const webhooks = resource(webhookKind, { path: '/webhooks', tag })

const change = (method: 'patch' | 'put'): Operation =>
  webhooks.update({
    method,
    body: WebhookPatch,
    raises: ['POLICY_NOT_FOUND'],
    check(_next, { body, stored, services }) {
      const problems = addressProblems(services, 'url', body.url, stored.url)
      if (problems.length > 0) raiseInvalid(problems)
    },
    // A webhook that is switched on starts with a clean record.
    change: (next, { body }) => (body.active ? { ...next, failures: 0, failing_since: null } : next),
    changed: (row, { tx }) => reloadWebhook(tx, row),
  })

const getSecret = itemOperation(webhookKind, {
  id: 'getWebhookSecret',
  command: ['webhooks', 'get-secret'],
  method: 'get',
  path: '/webhooks/{webhook_id}/secret',
  summary: 'Read the secret that signs deliveries',
  description: 'Its receiver verifies signatures with it. Reading it is in the audit log.',
  tag,
  action: 'webhooks:GetWebhookSecret',
  answers: { 200: WebhookSecret },
  raises: ['SECRET_NOT_DECRYPTABLE'],
  run: async ({ resource, services }) => ({ secret: secretOf(services, resource) }),
})

const deliveries = resource(deliveryKind, { path: '/webhook-deliveries', tag, param: 'delivery_id' })

const deliveryFilters = {
  status: oneOf('status', deliveryStatuses),
  event_type: equalsFilter('event_type'),
  event_id: equalsFilter('event_id'),
}

const listDeliveries = operation({
  id: 'listWebhookDeliveries',
  method: 'get',
  path: '/webhook-deliveries',
  summary: 'List the deliveries of a webhook',
  description: 'Each with its attempts, the status of the last answer and when the next attempt is due.',
  tag,
  action: 'webhooks:ListWebhookDeliveries',
  lists: webhookKind,
  query: filterSchema(deliveryFilters).extend({
    webhook_id: z.string().describe('Webhook whose deliveries are listed'),
  }),
  answers: { 200: pageOf(WebhookDelivery) },
  async run(context) {
    const { query } = context
    const owner = await findVisibleWebhook(context.db, context.caller, query.webhook_id)
    context.allow('webhooks:ListWebhookDeliveries', { kind: webhookKind, row: owner })
    // Index webhook_deliveries_webhook; by event webhook_deliveries_event.
    return pageResult<DeliveryRow>(context, {
      columns: deliveryKind.columns,
      from: sql.fragment`webhook_deliveries t`,
      rows: sql.fragment`t.webhook_id = ${owner.id}`,
      kept: maintainedCount(deliveryKind.table, owner.id),
      filters: [
        context.project !== null && context.project !== owner.project_id && sql.fragment`false`,
        ...filterConditions(deliveryFilters, query),
      ],
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.id desc`,
      key: sql.fragment`t.id`,
      present: deliveryKind.present,
    })
  },
})

const redeliverMany = operation({
  id: 'redeliverWebhookDeliveries',
  method: 'post',
  path: '/webhook-deliveries/redeliver',
  summary: 'Send the payloads of many deliveries of a webhook again',
  description: `The oldest ${MAX_REDELIVERIES} that match, each as a new delivery.`,
  tag,
  action: 'webhooks:RedeliverWebhookDelivery',
  about: webhookKind,
  body: RedeliverInput,
  answers: { 202: RedeliverResult },
  async run({ tx, body, caller, allow, audit }) {
    const owner = await findVisibleWebhook(tx, caller, body.webhook_id)
    audit.project_id = owner.project_id
    audit.resource_public_id = owner.id
    audit.resource_srn = srn(owner.project_id, webhookKind.name, owner.id)
    allow('webhooks:RedeliverWebhookDelivery', { kind: webhookKind, row: owner })
    const ids = await isRedeliverable(
      tx,
      { ...body, from: parseTime(body.from), to: parseTime(body.to) },
      MAX_REDELIVERIES,
    )
    if (ids.length === 0) return { count: 0 }
    const count = await insertRedeliveries(tx, ids)
    notifyWorkers(tx, owner)
    return { count }
  },
})

export const webhookOperations: Operation[] = [
  webhooks.create({
    summary: 'Subscribe an address to events',
    description: 'The answer is the only record that shows the secret.',
    body: WebhookInput,
    answers: { 201: WebhookWithSecret },
    raises: ['POLICY_NOT_FOUND'],
    secretAnswer: true,
    async make({ tx, body, project, services }) {
      const problems = addressProblems(services, 'url', body.url)
      if (problems.length > 0) raiseInvalid(problems)
      const limit = services.config.WEBHOOK_MAX_PER_PROJECT
      if ((await countLockedWebhooks(tx, project)) >= limit)
        raiseInvalid({ code: 'LIMIT_REACHED', path: '', message: `a project has at most ${limit} webhooks` })
      const id = newId(webhookKind.prefix)
      // The clock of event timestamps: what happened before does not concern the webhook.
      const created_at = new Date().toISOString()
      const sealed_secret = services.secrets.seal(newWebhookSecret(), sealedForWebhook(id, project))
      return insertWebhook(tx, { ...body, id, project_id: project, sealed_secret, created_at, updated_at: created_at })
    },
    show: (row, { services }) => ({ secret: secretOf(services, row) }),
  }),
  // webhooks_project
  webhooks.list({ filters: { active: flagFilter('active') } }),
  webhooks.get(),
  change('patch'),
  change('put'),
  webhooks.remove({
    summary: 'Delete a webhook and its deliveries',
    description: 'Queued deliveries are not sent.',
    removed: (row, { tx }) => reloadWebhook(tx, row),
  }),
  getSecret,
  webhooks.action('rotate-secret', {
    id: 'rotateWebhookSecret',
    action: 'webhooks:RotateWebhookSecret',
    summary: 'Replace the secret',
    description:
      'Signs from the next attempt on. For `overlap_seconds` the signature header carries a second `v1` made with the old secret.',
    body: RotateWebhookSecretInput,
    bodyOptional: true,
    answers: { 200: WebhookWithSecret },
    secretAnswer: true,
    async run({ tx, body, resource, services }) {
      const secret = newWebhookSecret()
      const sealed = services.secrets.seal(secret, sealedForWebhook(resource.id, resource.project_id))
      const row = (await rotateWebhookSecret(tx, resource.id, sealed, body?.overlap_seconds ?? 0)) ?? gone(resource.id)
      tx.emit(webhookKind, 'secret_rotated', row)
      reloadWebhook(tx, row)
      return { ...webhookKind.present(row), secret }
    },
  }),
  webhooks.action('test', {
    summary: 'Send a synthetic webhooks.test event to this webhook',
    description:
      'One delivery is queued, whatever events the webhook subscribes to, and shows up among its deliveries.',
    answers: { 202: WebhookDelivery },
    async run({ tx, resource, services }) {
      const event = makeEvent(webhookKind, 'test', resource, {}, services.config.EVENT_DATA_MAX_BYTES)
      const row =
        (await insertDelivery(tx, {
          webhook_id: resource.id,
          event_id: event.id,
          event_type: event.name,
          envelope: event.envelope,
          redelivery_of: null,
        })) ?? gone(resource.id)
      notifyWorkers(tx, resource)
      return deliveryKind.present(row)
    },
  }),
  ...[listDeliveries, deliveries.get({ summary: 'Read a delivery', action: 'webhooks:GetWebhookDelivery' })].map(
    shown => factsLeftOut(shown, (delivery, clear) => ({ ...delivery, payload: clear(delivery.payload) })),
  ),
  redeliverMany,
  deliveries.action('redeliver', {
    summary: 'Send the payload of a delivery again',
    description: 'As a new delivery with the same event id. Pattern, policy and `active` are not evaluated again.',
    action: 'webhooks:RedeliverWebhookDelivery',
    answers: { 202: WebhookDelivery },
    async run({ tx, resource }) {
      const row = (await insertDelivery(tx, { ...resource, redelivery_of: resource.id })) ?? gone(resource.id)
      notifyWorkers(tx, { id: row.webhook_id, project_id: row.project_id })
      return deliveryKind.present(row)
    },
  }),
]
