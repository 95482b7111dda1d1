import { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { equalsFilter, filterConditions, filterSchema, flagFilter, oneOf } from '#core/api/filters.ts'
import { isIdOf, srn } from '#core/api/kind.ts'
import { maintainedCount, pageOf, pageResult, parseTime } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid, raiseInvalidValue } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { addressProblems } from '#core/net/refused-address.ts'
import { resource } from '#core/resources/resource.ts'
import { makeEvent } from '#core/writes/events.ts'
import type { Tx } from '#core/writes/writer.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { withFactsRedacted } from './facts.ts'
import {
  DELIVERY_STATUSES,
  type DeliveryRow,
  deliveryKind,
  newWebhookSecret,
  RedeliverInput,
  RedeliverResult,
  RotateWebhookSecretInput,
  sealedForWebhook,
  WEBHOOK_CHANNEL,
  WebhookDelivery,
  WebhookInput,
  WebhookPatch,
  WebhookPreview,
  WebhookPreviewInput,
  type WebhookRow,
  WebhookSecret,
  WebhookWithSecret,
  WebhookWithWarnings,
  webhookKind,
  webhookPayload,
} from './model.ts'
import {
  countLockedWebhooks,
  insertDelivery,
  insertRedeliveries,
  insertWebhook,
  listRedeliverable,
  rotateWebhookSecret,
} from './store.ts'
import { previewBody, type TemplateSettings } from './templates.ts'

const tag = 'Webhooks'
const MAX_REDELIVERIES = 1000

const raiseNotFound = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id } })

type WebhookRef = { id: string; project_id: string }

/** Notifies workers of due deliveries of a webhook on commit. */
export const notifyWorkers = (tx: Tx, row: WebhookRef): void =>
  tx.notify(WEBHOOK_CHANNEL, webhookPayload(row.id, row.project_id))

/** Makes workers reload a webhook on commit, so that claimed deliveries are not sent with its old settings. */
export const reloadWebhook = (tx: Tx, row: WebhookRef): void =>
  tx.invalidate(WEBHOOK_CHANNEL, webhookPayload(row.id, row.project_id))

/**
 * Finds a webhook that the caller may see.
 * @throws RESOURCE_NOT_FOUND
 */
export async function findVisibleWebhook(db: Queryable, caller: Caller, id: string): Promise<WebhookRow> {
  const row = isIdOf(webhookKind, id) ? await webhookKind.find(db, id) : null
  return row && canSeeProject(caller, row.project_id) ? row : raiseNotFound(id)
}

function openSecret({ secrets }: Services, { id, project_id, sealed_secret }: WebhookRow): string {
  const opened = secrets.open(sealed_secret, sealedForWebhook(id, project_id))
  return opened.ok ? opened.value : raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
}

const webhooks = resource(webhookKind, { path: '/webhooks', tag })

/** Returns the warning about a URL that the egress rule blocks. */
const showWarnings = ({ url }: WebhookRow, { services }: Pick<Context<any>, 'services'>): object =>
  warningsField(addressProblems(services, 'url', url))

/** Refuses a mail without a template for it, and a template for mail without a mail. @throws VALIDATION_FAILED */
function requireMail({ template = null, mail = null }: Partial<TemplateSettings>): void {
  const isMail = template !== null && template !== 'slack'
  if (isMail && mail === null) raiseInvalidValue('mail', `is required for the template ${template}`)
  if (!isMail && mail !== null) raiseInvalidValue('mail', 'requires the template postmark or sendgrid')
}

type TemplatedWebhook = Pick<WebhookRow, 'url' | 'template' | 'mail' | 'secret_id'>

/**
 * Validates the template of a webhook. A new secret, or another destination of one, requires permission to use it: otherwise a writer of
 * webhooks could send any secret to any address, and mail to anyone.
 * @throws VALIDATION_FAILED, FORBIDDEN
 */
function checkTemplate(
  { allow }: Pick<Context, 'allow'>,
  project_id: string,
  next: TemplatedWebhook,
  stored: TemplatedWebhook | null,
): void {
  requireMail(next)
  const { mail, secret_id: id, template, url } = next
  if (mail !== null && id === null) raiseInvalidValue('secret_id', `is required for the template ${template}`)
  if (mail === null && id !== null) raiseInvalidValue('secret_id', 'requires the template postmark or sendgrid')
  const isLinked =
    stored?.secret_id === id &&
    stored.url === url &&
    stored.template === template &&
    JSON.stringify(stored.mail) === JSON.stringify(mail)
  if (id !== null && !isLinked) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
}

const SECRET_RULE =
  'Another secret, or another `url`, `template` or `mail` with one, requires `secrets:UseSecret` on it.'

const preview = operation({
  id: 'previewWebhook',
  method: 'post',
  path: '/webhooks/preview',
  command: ['webhooks', 'preview'],
  summary: 'Preview a webhook template',
  description: 'Returns the body that a template makes of a sample event. Sends and stores nothing.',
  tag,
  action: 'webhooks:PreviewWebhook',
  creates: webhookKind,
  reads: true,
  body: WebhookPreviewInput,
  answers: { 200: WebhookPreview },
  async run({ body, project, services }) {
    requireMail(body)
    return { body: previewBody(project as string, body, services.config) }
  },
})

const updateOperation = (method: 'patch' | 'put'): Operation =>
  webhooks.update({
    method,
    description: `Omitted fields are unchanged. ${SECRET_RULE}`,
    alsoActions: ['secrets:UseSecret'],
    body: WebhookPatch,
    raises: ['POLICY_NOT_FOUND', 'SECRET_NOT_FOUND'],
    answers: { 200: WebhookWithWarnings },
    show: showWarnings,
    check: (next, context) => checkTemplate(context, next.project_id, next, context.stored),
    // Enabling a webhook resets its failure count.
    change: (next, { body }) => (body.active ? { ...next, failures: 0, failing_since: null } : next),
    changed: (row, { tx }) => reloadWebhook(tx, row),
  })

const getSecret = itemOperation(webhookKind, {
  id: 'getWebhookSecret',
  command: ['webhooks', 'get-secret'],
  method: 'get',
  path: '/webhooks/{webhook_id}/secret',
  summary: 'Get a webhook secret',
  description: 'Returns the secret with which the receiver verifies signatures. Every read is audited.',
  tag,
  action: 'webhooks:GetWebhookSecret',
  answers: { 200: WebhookSecret },
  raises: ['SECRET_NOT_DECRYPTABLE'],
  run: async ({ resource, services }) => ({ secret: openSecret(services, resource) }),
})

const deliveries = resource(deliveryKind, { path: '/webhook-deliveries', tag, param: 'delivery_id' })

const deliveryFilters = {
  status: oneOf('status', DELIVERY_STATUSES),
  event_type: equalsFilter('event_type'),
  event_id: equalsFilter('event_id'),
}

const listDeliveries = operation({
  id: 'listWebhookDeliveries',
  method: 'get',
  path: '/webhook-deliveries',
  summary: 'List webhook deliveries',
  description: 'Includes the attempts, the status of the last response and the time of the next attempt.',
  tag,
  action: 'webhooks:ListWebhookDeliveries',
  lists: webhookKind,
  across: null,
  query: filterSchema(deliveryFilters).extend({
    webhook_id: z.string().describe('ID of the webhook'),
  }),
  answers: { 200: pageOf(WebhookDelivery) },
  async run(context) {
    const { query } = context
    const webhook = await findVisibleWebhook(context.db, context.caller, query.webhook_id)
    context.allow('webhooks:ListWebhookDeliveries', { kind: webhookKind, row: webhook })
    // Index webhook_deliveries_webhook; by event webhook_deliveries_event.
    return pageResult<DeliveryRow>(context, {
      columns: deliveryKind.columns,
      from: sql.fragment`webhook_deliveries t`,
      rows: sql.fragment`t.webhook_id = ${webhook.id}`,
      kept: maintainedCount(deliveryKind.table, webhook.id),
      filters: [
        context.project !== null && context.project !== webhook.project_id && sql.fragment`false`,
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
  summary: 'Redeliver webhook deliveries',
  description: `Queues a new delivery for each match, oldest first, at most ${MAX_REDELIVERIES}.`,
  tag,
  action: 'webhooks:RedeliverWebhookDelivery',
  about: webhookKind,
  body: RedeliverInput,
  answers: { 202: RedeliverResult },
  async run({ tx, body, caller, allow, audit }) {
    const webhook = await findVisibleWebhook(tx, caller, body.webhook_id)
    audit.project_id = webhook.project_id
    audit.resource_public_id = webhook.id
    audit.resource_srn = srn(webhook.project_id, webhookKind.name, webhook.id)
    allow('webhooks:RedeliverWebhookDelivery', { kind: webhookKind, row: webhook })
    const ids = await listRedeliverable(
      tx,
      { ...body, from: parseTime(body.from), to: parseTime(body.to) },
      MAX_REDELIVERIES,
    )
    if (ids.length === 0) return { count: 0 }
    const count = await insertRedeliveries(tx, ids)
    notifyWorkers(tx, webhook)
    return { count }
  },
})

export const webhookOperations: Operation[] = [
  webhooks.create({
    summary: 'Create a webhook',
    description:
      'Subscribes a URL to events. The response includes the signing secret. The secret of a mail service requires `secrets:UseSecret` on it.',
    alsoActions: ['secrets:UseSecret'],
    body: WebhookInput,
    validate: ({ body }) => requireMail(body),
    warnings: ({ services, body }) => addressProblems(services, 'url', body.url),
    check: (context: Context<any, any> & { project: string }) =>
      checkTemplate(context, context.project, context.body, null),
    answers: { 201: WebhookWithSecret },
    raises: ['POLICY_NOT_FOUND', 'SECRET_NOT_FOUND'],
    secretAnswer: true,
    async make({ tx, body, project, services }) {
      const limit = services.config.WEBHOOK_MAX_PER_PROJECT
      if ((await countLockedWebhooks(tx, project)) >= limit)
        raiseInvalid({
          code: 'LIMIT_REACHED',
          path: '',
          message: `Project already has the maximum of ${limit} webhooks`,
        })
      const id = newId(webhookKind.prefix)
      // Uses the clock of event timestamps, since earlier events are not delivered.
      const created_at = systemClock.now().toISOString()
      const sealed_secret = services.secrets.seal(newWebhookSecret(), sealedForWebhook(id, project))
      return insertWebhook(tx, { ...body, id, project_id: project, sealed_secret, created_at, updated_at: created_at })
    },
    show: (row, context) => ({ secret: openSecret(context.services, row), ...showWarnings(row, context) }),
  }),
  preview,
  // webhooks_project
  webhooks.list({ filters: { active: flagFilter('active') }, where: () => [sql.fragment`t.task_id is null`] }),
  webhooks.get(),
  updateOperation('patch'),
  updateOperation('put'),
  webhooks.remove({
    summary: 'Delete a webhook',
    description: 'Deletes its deliveries too. Queued deliveries are not sent.',
    removed: (row, { tx }) => reloadWebhook(tx, row),
  }),
  getSecret,
  webhooks.action('rotate-secret', {
    id: 'rotateWebhookSecret',
    action: 'webhooks:RotateWebhookSecret',
    summary: 'Rotate a webhook secret',
    description:
      'The new secret signs from the next attempt on. For `overlap_seconds`, the signature header has a second `v1` with the previous secret.',
    body: RotateWebhookSecretInput,
    bodyOptional: true,
    answers: { 200: WebhookWithSecret },
    secretAnswer: true,
    async run({ tx, body, resource, services }) {
      const secret = newWebhookSecret()
      const sealed = services.secrets.seal(secret, sealedForWebhook(resource.id, resource.project_id))
      const row =
        (await rotateWebhookSecret(tx, resource.id, sealed, body?.overlap_seconds ?? 0)) ?? raiseNotFound(resource.id)
      tx.emit(webhookKind, 'secret_rotated', row)
      reloadWebhook(tx, row)
      return { ...webhookKind.present(row), secret }
    },
  }),
  webhooks.action('test', {
    summary: 'Send a test event',
    description: 'Queues one delivery of a `webhooks.test` event, regardless of the event patterns of the webhook.',
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
        })) ?? raiseNotFound(resource.id)
      notifyWorkers(tx, resource)
      return deliveryKind.present(row)
    },
  }),
  ...[listDeliveries, deliveries.get({ summary: 'Get a webhook delivery', action: 'webhooks:GetWebhookDelivery' })].map(
    operation =>
      withFactsRedacted(operation, (delivery, redact) => ({ ...delivery, payload: redact(delivery.payload) })),
  ),
  redeliverMany,
  deliveries.action('redeliver', {
    summary: 'Redeliver a webhook delivery',
    description:
      'Queues a new delivery with the same event ID. Event patterns, policy and `active` are not evaluated again.',
    action: 'webhooks:RedeliverWebhookDelivery',
    answers: { 202: WebhookDelivery },
    async run({ tx, resource }) {
      const row = (await insertDelivery(tx, { ...resource, redelivery_of: resource.id })) ?? raiseNotFound(resource.id)
      notifyWorkers(tx, { id: row.webhook_id, project_id: row.project_id })
      return deliveryKind.present(row)
    },
  }),
]
