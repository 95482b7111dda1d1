import { z } from 'zod'
import { invalid, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf, srn } from '../../core/api/kind.ts'
import { anyOf, between, booleanQuery, listTable, page, pageOf, parseTime, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { makeEvent } from '../../core/db/events.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { sees } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import {
  type DeliveryRow,
  delivery,
  deliveryColumns,
  deliveryStatuses,
  RedeliverInput,
  RedeliverResult,
  RotateSecretInput,
  sealedFor,
  WEBHOOK_CHANNEL,
  Webhook,
  WebhookDelivery,
  WebhookInput,
  WebhookPatch,
  type WebhookRow,
  WebhookSecret,
  WebhookWithSecret,
  webhook,
  webhookPayload,
} from './model.ts'
import { newSecret } from './secret.ts'
import {
  countLocked,
  deleteWebhook,
  holdPolicy,
  insertDelivery,
  insertWebhook,
  redeliverAll,
  redeliverable,
  rotateSecret,
  updateWebhook,
} from './store.ts'

const tag = 'Webhooks'
const MAX_REDELIVERIES = 1000

const gone = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id } })

/** Has workers read a webhook anew once the transaction commits, and send what is due. */
export const tellWorkers = (tx: Tx, row: { id: string; project_id: string }): void =>
  tx.notify(WEBHOOK_CHANNEL, webhookPayload(row.id, row.project_id))

/** The webhook a query or body names; one that the caller may not know of does not exist. */
export async function findVisible(db: Queryable, caller: Caller, id: string): Promise<WebhookRow> {
  const row = isIdOf(webhook, id) ? await webhook.find(db, id) : null
  return row && sees(caller, row.project_id) ? row : gone(id)
}

async function checkPolicy(db: Queryable, id: string | null | undefined): Promise<void> {
  if (typeof id === 'string' && !(await holdPolicy(db, id))) raise('POLICY_NOT_FOUND', { meta: { id } })
}

const create = operation({
  id: 'createWebhook',
  method: 'post',
  path: '/webhooks',
  summary: 'Subscribe an address to events',
  description: 'The answer is the only record that shows the secret.',
  tag,
  action: 'webhooks:CreateWebhook',
  creates: webhook,
  body: WebhookInput,
  answers: { 201: WebhookWithSecret },
  raises: ['POLICY_NOT_FOUND'],
  secretAnswer: true,
  async run({ tx, body, project, services }) {
    await checkPolicy(tx, body.policy_id)
    const { project_id: _, ...fields } = body
    const id = newId('wh')
    const project_id = project as string
    const limit = services.config.WEBHOOK_MAX_PER_PROJECT
    if ((await countLocked(tx, project_id)) >= limit)
      invalid({ code: 'LIMIT_REACHED', path: '', message: `a project has at most ${limit} webhooks` })
    const secret = newSecret()
    const row = await insertWebhook(tx, {
      ...fields,
      id,
      project_id,
      sealed_secret: services.secrets.seal(secret, sealedFor(id, project_id)),
      // The clock of event timestamps: what happened before does not concern the webhook.
      created_at: new Date().toISOString(),
    })
    tx.emit(webhook, 'created', row)
    return { ...webhook.present(row), secret }
  },
})

const list = operation({
  id: 'listWebhooks',
  method: 'get',
  path: '/webhooks',
  summary: 'List webhooks',
  tag,
  action: 'webhooks:ListWebhooks',
  lists: webhook,
  query: z.object({ project_id: textFilter, active: booleanQuery.optional() }),
  answers: { 200: pageOf(Webhook) },
  // Index webhooks_project.
  run: context =>
    listTable<WebhookRow>(context, {
      table: 'webhooks',
      columns: webhook.columns,
      where: [context.query.active !== undefined && sql.fragment`t.active = ${context.query.active}`],
      present: webhook.present,
    }),
})

const get = itemOperation(webhook, {
  id: 'getWebhook',
  method: 'get',
  path: '/webhooks/{webhook_id}',
  summary: 'Read a webhook',
  tag,
  action: 'webhooks:GetWebhook',
  answers: { 200: Webhook },
  run: async ({ resource }) => webhook.present(resource),
})

const change = (method: 'patch' | 'put') =>
  itemOperation(webhook, {
    id: method === 'patch' ? 'updateWebhook' : 'replaceWebhook',
    method,
    path: '/webhooks/{webhook_id}',
    summary: 'Change the fields given',
    tag,
    action: 'webhooks:UpdateWebhook',
    body: WebhookPatch,
    answers: { 200: Webhook },
    raises: ['POLICY_NOT_FOUND'],
    async run({ tx, body, resource }) {
      await checkPolicy(tx, body.policy_id)
      const row = (await updateWebhook(tx, resource.id, body)) ?? gone(resource.id)
      tx.emit(webhook, 'updated', row)
      tellWorkers(tx, row)
      return webhook.present(row)
    },
  })

const remove = itemOperation(webhook, {
  id: 'deleteWebhook',
  method: 'delete',
  path: '/webhooks/{webhook_id}',
  summary: 'Delete a webhook and its deliveries',
  description: 'Queued deliveries are not sent.',
  tag,
  action: 'webhooks:DeleteWebhook',
  answers: { 204: null },
  async run({ tx, resource }) {
    const row = (await deleteWebhook(tx, resource.id)) ?? gone(resource.id)
    tx.emit(webhook, 'deleted', row)
    tellWorkers(tx, row)
  },
})

const getSecret = itemOperation(webhook, {
  id: 'getWebhookSecret',
  method: 'get',
  path: '/webhooks/{webhook_id}/secret',
  summary: 'Read the secret that signs deliveries',
  tag,
  action: 'webhooks:GetWebhookSecret',
  answers: { 200: WebhookSecret },
  raises: ['SECRET_NOT_DECRYPTABLE'],
  async run({ resource, services }) {
    const opened = services.secrets.open(resource.sealed_secret, sealedFor(resource.id, resource.project_id))
    return opened.ok ? { secret: opened.value } : raise('SECRET_NOT_DECRYPTABLE', { meta: { id: resource.id } })
  },
})

const rotate = itemOperation(webhook, {
  id: 'rotateWebhookSecret',
  method: 'post',
  path: '/webhooks/{webhook_id}/rotate-secret',
  summary: 'Replace the secret',
  description:
    'Signs from the next attempt on. For `overlap_seconds` the signature header carries a second `v1` made with the old secret.',
  tag,
  action: 'webhooks:RotateWebhookSecret',
  body: RotateSecretInput,
  bodyOptional: true,
  answers: { 200: WebhookWithSecret },
  secretAnswer: true,
  async run({ tx, body, resource, services }) {
    const secret = newSecret()
    const sealed = services.secrets.seal(secret, sealedFor(resource.id, resource.project_id))
    const row = (await rotateSecret(tx, resource.id, sealed, body?.overlap_seconds ?? 0)) ?? gone(resource.id)
    tx.emit(webhook, 'secret_rotated', row)
    tellWorkers(tx, row)
    return { ...webhook.present(row), secret }
  },
})

const test = itemOperation(webhook, {
  id: 'testWebhook',
  method: 'post',
  path: '/webhooks/{webhook_id}/test',
  summary: 'Send a synthetic webhooks.test event to this webhook',
  tag,
  action: 'webhooks:TestWebhook',
  answers: { 202: WebhookDelivery },
  async run({ tx, resource, services }) {
    const { id } = resource
    const event = makeEvent(webhook, 'test', resource, {}, services.config.EVENT_DATA_MAX_BYTES)
    const row =
      (await insertDelivery(tx, {
        webhook_id: id,
        event_id: event.id,
        event_type: event.name,
        envelope: event.envelope,
        redelivery_of: null,
      })) ?? gone(id)
    tellWorkers(tx, resource)
    return delivery.present(row)
  },
})

const listDeliveries = operation({
  id: 'listWebhookDeliveries',
  method: 'get',
  path: '/webhook-deliveries',
  summary: 'List the deliveries of a webhook',
  tag,
  action: 'webhooks:ListWebhookDeliveries',
  lists: webhook,
  query: z.object({
    project_id: textFilter,
    webhook_id: z.string(),
    status: anyOf(deliveryStatuses),
    event_type: textFilter,
    event_id: textFilter,
  }),
  answers: { 200: pageOf(WebhookDelivery) },
  async run(context) {
    const { query } = context
    const owner = await findVisible(context.db, context.caller, query.webhook_id)
    context.allow('webhooks:ListWebhookDeliveries', { kind: webhook, row: owner })
    // Index webhook_deliveries_webhook; by event webhook_deliveries_event.
    return page<DeliveryRow>(context, {
      columns: deliveryColumns,
      from: sql.fragment`webhook_deliveries t`,
      where: [
        sql.fragment`t.webhook_id = ${owner.id}`,
        context.project !== null && sql.fragment`t.project_id = ${context.project}`,
        query.status && sql.fragment`t.status = any (${sql.array(query.status, 'text')})`,
        query.event_type !== undefined && sql.fragment`t.event_type = ${query.event_type}`,
        query.event_id !== undefined && sql.fragment`t.event_id = ${query.event_id}`,
        between(sql.fragment`t.created_at`, context.page),
      ],
      order: sql.fragment`t.created_at desc, t.id desc`,
      present: delivery.present,
    })
  },
})

const getDelivery = itemOperation(delivery, {
  id: 'getWebhookDelivery',
  method: 'get',
  path: '/webhook-deliveries/{delivery_id}',
  summary: 'Read a delivery',
  tag,
  action: 'webhooks:GetWebhookDelivery',
  param: 'delivery_id',
  answers: { 200: WebhookDelivery },
  run: async ({ resource }) => delivery.present(resource),
})

const redeliver = itemOperation(delivery, {
  id: 'redeliverWebhookDelivery',
  method: 'post',
  path: '/webhook-deliveries/{delivery_id}/redeliver',
  summary: 'Send the payload of a delivery again',
  description: 'As a new delivery with the same event id. Pattern, policy and `active` are not evaluated again.',
  tag,
  action: 'webhooks:RedeliverWebhookDelivery',
  param: 'delivery_id',
  answers: { 202: WebhookDelivery },
  async run({ tx, resource }) {
    const row = (await insertDelivery(tx, { ...resource, redelivery_of: resource.id })) ?? gone(resource.id)
    tellWorkers(tx, { id: row.webhook_id, project_id: row.project_id })
    return delivery.present(row)
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
  about: webhook,
  body: RedeliverInput,
  answers: { 202: RedeliverResult },
  async run({ tx, body, caller, allow, audit }) {
    const owner = await findVisible(tx, caller, body.webhook_id)
    audit.project_id = owner.project_id
    audit.resource_public_id = owner.id
    audit.resource_srn = srn(owner.project_id, webhook.name, owner.id)
    allow('webhooks:RedeliverWebhookDelivery', { kind: webhook, row: owner })
    const filter = { ...body, from: parseTime(body.from), to: parseTime(body.to) }
    const ids = await redeliverable(tx, filter, MAX_REDELIVERIES)
    if (ids.length === 0) return { count: 0 }
    const count = await redeliverAll(tx, ids)
    tellWorkers(tx, owner)
    return { count }
  },
})

export const webhookOperations: Operation[] = [
  create,
  list,
  get,
  change('patch'),
  change('put'),
  remove,
  getSecret,
  rotate,
  test,
  listDeliveries,
  getDelivery,
  redeliverMany,
  redeliver,
]
