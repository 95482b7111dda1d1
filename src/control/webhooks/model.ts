import { randomBytes } from 'node:crypto'
import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { isEventPattern } from '#core/writes/events.ts'

/** Notification channel for webhooks that changed or have new deliveries. */
export const WEBHOOK_CHANNEL = 'muster_webhooks'

export const webhookPayload = (webhookId: string, projectId: string): string => `${webhookId} ${projectId}`
export function parseWebhookPayload(payload: string): { webhook_id: string; project_id: string } {
  const [webhook_id, project_id] = payload.split(' ')
  return { webhook_id, project_id }
}

export const MAX_ATTEMPTS = 3

const time = z.iso.datetime()

/**
 * Returns the problem with a webhook URL, or null. Checks syntax only; the egress policy checks addresses on sending.
 */
function urlProblem(text: string): string | null {
  const url = URL.parse(text)
  if (!url || !/^https?:\/\/[^/?#\\\s][^\s]*$/i.test(text)) return 'must be an absolute http or https URL'
  if (/^https?:\/\/[^/?#\\]*@/i.test(text)) return 'must not contain a username or password'
  if (text.includes('#')) return 'must not contain a fragment'
  return null
}

/** A URL to which requests of a project are sent. */
export const receiverUrl = z
  .string()
  .max(2048)
  .superRefine((text, context) => {
    const problem = urlProblem(text)
    if (problem) context.addIssue({ code: 'custom', message: problem })
  })

const url = receiverUrl.describe(
  'URL that deliveries are posted to: absolute, http or https, without credentials or fragment',
)

export const pattern = z
  .string()
  .refine(isEventPattern, 'must be *, prefix.* or an event name in lower case, at most 128 characters')
  .describe('`*`, `prefix.*` or an exact event name')

const events = z
  .array(pattern)
  .min(1)
  .max(100)
  .transform(patterns => [...new Set(patterns)])
  .describe('Event patterns; an event is sent if it matches any of them')

const TEMPLATES = ['slack', 'postmark', 'sendgrid'] as const

const templateText =
  'Service that shapes the body. `slack` – JSON of an incoming webhook of Slack. `postmark`, `sendgrid` – JSON of a mail. Null: the event itself.'
const secretText =
  'ID of the secret with the key of the mail service, sent as `X-Postmark-Server-Token` or as a bearer token. Null without a mail.'

/** Longest address of a mail, by RFC 5321. */
const MAX_ADDRESS = 254
/** Most recipients that Postmark accepts. */
const MAX_RECIPIENTS = 50

const address = z.email().max(MAX_ADDRESS)

const Mail = z
  .strictObject({
    from: address.describe('Address of the sender, which the mail service must accept'),
    to: z
      .array(address)
      .min(1)
      .max(MAX_RECIPIENTS)
      .refine(to => new Set(to.map(each => each.toLowerCase())).size === to.length, 'must be different addresses')
      .describe('Addresses of the recipients'),
  })
  .meta({ id: 'WebhookMail', example: { from: 'alerts@shop.example', to: ['desk@shop.example'] } })

const templateFields = {
  template: z.enum(TEMPLATES).nullable().describe(templateText),
  mail: Mail.nullable().describe('Addresses of the mail of `postmark` or `sendgrid`. Null without a mail.'),
  secret_id: z.string().nullable().describe(secretText),
}

const fields = {
  name: z.string().min(1).max(200).describe('Display name'),
  description: z.string().max(2000).nullable().describe('Purpose of the webhook'),
  url,
  events,
  active: z
    .boolean()
    .describe('Whether deliveries are enabled. Events that occur while disabled are not delivered later.'),
  policy_id: z.string().nullable().describe('ID of the policy that must allow an event for it to be sent'),
  ...templateFields,
}

export const Webhook = record('Webhook', {
  policy_id: z.string().nullable().meta({ description: 'ID of the policy that must allow an event for it to be sent' }),
  name: z.string(),
  description: z.string().nullable(),
  url: z.string(),
  events: z.array(z.string()).meta({ description: 'Event patterns: `*`, `prefix.*` or an exact event name' }),
  active: z.boolean(),
  ...templateFields,
})

export const WebhookWithSecret = withWarnings(
  Webhook.extend({
    secret: z
      .string()
      .describe('Secret that signs deliveries; returned only here and by the secret endpoint')
      .meta({ 'x-secret': true }),
  }),
  'WebhookWithSecret',
)

export const WebhookWithWarnings = withWarnings(Webhook, 'WebhookWithWarnings')

export const WebhookSecret = z
  .object({ secret: z.string().describe('Secret that signs deliveries').meta({ 'x-secret': true }) })
  .meta({ id: 'WebhookSecret' })

export const WebhookInput = createBody(
  'WebhookInput',
  {
    ...fields,
    description: fields.description.default(null),
    active: fields.active.default(true),
    policy_id: fields.policy_id.default(null),
    template: fields.template.default(null),
    mail: fields.mail.default(null),
    secret_id: fields.secret_id.default(null),
  },
  ['name', 'url', 'events'],
  { name: 'help desk', url: 'https://shop.example/hooks/muster', events: ['sessions.*', 'generations.failed'] },
)

export const WebhookPatch = patchBody('WebhookPatch', fields, { events: ['sessions.*', 'generations.failed'] })

export const WebhookPreviewInput = z
  .strictObject({
    project_id: projectField,
    template: templateFields.template.default(null),
    mail: templateFields.mail.default(null),
  })
  .meta({ id: 'WebhookPreviewInput', example: { template: 'slack' } })

export const WebhookPreview = z
  .object({
    body: z.string().describe('Body of a delivery of a sample event, an approval that waits for a decision'),
  })
  .meta({ id: 'WebhookPreview' })

export const RotateWebhookSecretInput = z
  .strictObject({
    overlap_seconds: z
      .int()
      .min(0)
      .max(86_400)
      .default(0)
      .describe(
        'Seconds during which deliveries also carry a signature with the previous secret. Default 0, at most 86,400.',
      ),
  })
  .meta({ id: 'RotateWebhookSecretInput' })

const declared = kind({
  name: 'webhook',
  prefix: 'wh',
  table: 'webhooks',
  counted: false,
  references: [
    { kind: 'policy', column: 'policy_id', on_delete: 'block' },
    { kind: 'secret', column: 'secret_id', on_delete: 'block' },
  ],
  record: Webhook,
  hidden: {
    sealed_secret: z.string(),
    failures: z.int(),
    failing_since: time.nullable(),
    /** Task of a client of a protocol whose changes are sent to the URL; null for a webhook of the project. */
    task_id: z.string().nullable(),
    /** Sealed JSON of further headers of the deliveries; null for none. */
    sealed_headers: z.string().nullable(),
  },
  events: ['created', 'updated', 'deleted', 'secret_rotated', 'test'],
  eventNotes: 'the secret is never present',
})
export type WebhookRow = z.output<typeof declared.row>

/** Webhooks of projects. Paths and bodies cannot address the webhooks of tasks. */
export const webhookKind = {
  ...declared,
  find: async (db: Queryable, id: string, lock = false): Promise<WebhookRow | null> => {
    const row = await declared.find(db, id, lock)
    return row?.task_id === null ? row : null
  },
}

/** Returns a new signing secret: `whsec_` and 43 base64url characters, 256 random bits. */
export const newWebhookSecret = (): string => `whsec_${randomBytes(32).toString('base64url')}`

/** Returns the row to which the secrets of a webhook are bound. */
export const sealedForWebhook = (id: string, projectId: string) => ({
  kind: 'webhook_secret',
  id,
  project_id: projectId,
})

export const webhookSecrets = ['sealed_secret', 'previous_sealed_secret', 'sealed_headers'].map(column =>
  sealedColumn({ table: 'webhooks', column, kind: 'webhook_secret' }),
)

export const DELIVERY_STATUSES = ['queued', 'completed', 'failed'] as const

/** Body of every delivery. */
export const Envelope = z
  .object({
    id: z.string(),
    event: z.string(),
    project_id: z.string(),
    resource_type: z.string(),
    resource_id: z.string(),
    data: z.record(z.string(), z.unknown()),
    timestamp: time,
  })
  .meta({ id: 'EventEnvelope' })

export const WebhookDelivery = z
  .object({
    id: z.string(),
    webhook_id: z.string(),
    event_type: z.string(),
    payload: Envelope,
    status: z.enum(DELIVERY_STATUSES),
    status_code: z.int().nullable().describe('HTTP status of the last response. Null without a response.'),
    attempts: z.int(),
    last_attempt_at: time.nullable().describe('Time of the last attempt'),
    next_attempt_at: time.nullable().describe('Time of the next attempt. Null if none follows.'),
    response_body: z
      .string()
      .nullable()
      .describe('First 1,024 bytes of the last response, or the reason for the failure'),
    redelivery_of: z.string().nullable().describe('ID of the original delivery. Null if this is not a redelivery.'),
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'WebhookDelivery' })

/** Outcomes of an event for a webhook: the statuses of its delivery, or why there is none. */
const EVENT_OUTCOMES = [...DELIVERY_STATUSES, 'not_subscribed', 'inactive', 'policy_denied', 'created_later'] as const

export const EventWebhook = z
  .object({
    webhook_id: z.string(),
    name: z.string(),
    outcome: z
      .enum(EVENT_OUTCOMES)
      .describe(
        '`queued`, `completed`, `failed` – status of the latest delivery; `queued` also while the event is not dispatched. `not_subscribed` – no pattern matches. `inactive` – the webhook is not active, or became eligible after the dispatch. `policy_denied` – the policy denies the event. `created_later` – the webhook is newer than the event.',
      ),
    delivery_id: z.string().nullable().describe('ID of the latest delivery. Null without one.'),
    judged_at: time
      .nullable()
      .describe('Time at which the outcome was determined from the current webhook. Null with a delivery.'),
  })
  .meta({ id: 'EventWebhook' })
export type EventOutcome = (typeof EVENT_OUTCOMES)[number]

const timeInput = z.string().refine(text => parseTime(text) !== null, 'must be an ISO 8601 time')

export const RedeliverInput = z
  .strictObject({
    webhook_id: z.string().describe('ID of the webhook'),
    status: z
      .enum(['completed', 'failed'])
      .default('failed')
      .describe('Final status of the deliveries. Default `failed`.'),
    event_type: z.string().max(128).optional().describe('Event name of the deliveries'),
    from: timeInput.optional().describe('Deliveries created at this time or later'),
    to: timeInput.optional().describe('Deliveries created at this time or earlier'),
  })
  .meta({ id: 'RedeliverWebhookDeliveriesInput' })

export const RedeliverResult = z.object({ count: z.int() }).meta({ id: 'RedeliverWebhookDeliveriesResult' })

/**
 * Returns the expression for the envelope of a delivery: stored with it, with its event, or retained after the event.
 */
export const envelopeExpr = (delivery: Fragment): Fragment => sql.fragment`
  coalesce(${delivery}.envelope, (select e.envelope from events e where e.id = ${delivery}.event_id),
    (select k.envelope from retained_envelopes k where k.event_id = ${delivery}.event_id))`

const DeliveryRow = z.object({
  ...WebhookDelivery.omit({ payload: true }).shape,
  project_id: z.string(),
  event_id: z.string(),
  envelope: z.string(),
})
export type DeliveryRow = z.output<typeof DeliveryRow>

export const deliveryKind = kind({
  name: 'webhook_delivery',
  plural: 'webhook_deliveries',
  prefix: 'whd',
  table: 'webhook_deliveries',
  counted: false,
  references: [{ kind: 'webhook', column: 'webhook_id', on_delete: 'cascade' }],
  record: WebhookDelivery,
  row: DeliveryRow,
  columns: sql.fragment`t.id, t.project_id, t.webhook_id, t.event_id, t.event_type,
    ${envelopeExpr(sql.fragment`t`)} as envelope, t.status, t.status_code, t.attempts, t.last_attempt_at,
    t.next_attempt_at, t.response_body, t.redelivery_of, t.created_at, t.updated_at`,
  present: ({ id, webhook_id, event_type, envelope, project_id: _, event_id: __, ...rest }: DeliveryRow) => ({
    id,
    webhook_id,
    event_type,
    payload: parseExactJson(envelope),
    ...rest,
  }),
  authorize: (row: DeliveryRow) => ({ type: 'webhook', id: row.webhook_id }),
})
