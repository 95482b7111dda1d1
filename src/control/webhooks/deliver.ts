import { createHmac } from 'node:crypto'
import type { Config } from '#core/base/config.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { SpanCapture } from '#core/base/span-targets.ts'
import { storableText, truncateBytes } from '#core/base/storable-text.ts'
import { currentCapture, hostAttributes, type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER } from '#core/base/telemetry-names.ts'
import type { EgressOutcome } from '#core/net/egress.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'
import { openSecret } from '#identity/secrets/resolve.ts'
import type { ClaimedDelivery } from './delivery-store.ts'
import { MAX_ATTEMPTS, sealedForWebhook } from './model.ts'
import { deliveryBody, keyHeader } from './templates.ts'

/** Stored bytes of a response body. */
const STORED_RESPONSE_BYTES = 1024

/** Returns the limits of a request to a receiver of a project. */
export const receiverLimits = ({ WEBHOOK_TIMEOUT_MS, EGRESS_MAX_REDIRECTS }: Config) => ({
  timeoutMs: WEBHOOK_TIMEOUT_MS,
  connectTimeoutMs: WEBHOOK_TIMEOUT_MS,
  maxRedirects: EGRESS_MAX_REDIRECTS,
  redirectMode: 'repost' as const,
  // One extra byte shows whether the last character is complete.
  maxBytes: STORED_RESPONSE_BYTES + 1,
  truncate: true,
})

const FIRST_BACKOFF_MS = 1000
const JITTER = 0.25

/** Outcome of a delivery attempt, as recorded and logged. */
export type DeliveryAttemptOutcome = {
  decision: 'done' | 'retry' | 'failed' | 'closed' | 'returned'
  status: 'queued' | 'completed' | 'failed'
  status_code: number | null
  /** Whether the attempt counts; blocked and aborted attempts do not. */
  counted: boolean
  retry_ms: number | null
  response_body: string | null
  /** Spans of the attempt for the target of the project. */
  capture?: SpanCapture | null
  /** Internal error that broke the attempt; only logged. */
  error?: unknown
}

/** Returns the outcome of an attempt that failed before anything was sent: no retry, attempts unchanged. */
const closed = (reason: string): DeliveryAttemptOutcome => ({
  decision: 'closed',
  status: 'failed',
  status_code: null,
  counted: false,
  retry_ms: null,
  response_body: reason,
})

/** Outcome of a delivery that is requeued unchanged. */
export const requeuedOutcome: DeliveryAttemptOutcome = {
  decision: 'returned',
  status: 'queued',
  status_code: null,
  counted: false,
  retry_ms: null,
  response_body: null,
}

/**
 * Returns `t=<unix seconds>,v1=<hex>`: HMAC-SHA256 over `<t>.<body>`, one `v1` per secret.
 * @param secrets the secret strings; their UTF-8 bytes are the keys
 */
export function signDelivery(secrets: readonly string[], body: string | Buffer, now: Date): string {
  const t = Math.floor(now.getTime() / 1000)
  const parts = secrets.map(secret => `v1=${createHmac('sha256', secret).update(`${t}.`).update(body).digest('hex')}`)
  return `t=${t},${parts.join(',')}`
}

/** Returns the delay before the next attempt: 1 s after the first failure, then 2 s, plus up to 25 % jitter. */
export const retryDelayMs = (attempts: number): number =>
  FIRST_BACKOFF_MS * 2 ** (attempts - 1) * (1 + Math.random() * JITTER)

/**
 * Makes one delivery attempt. Never throws: receiver failures are outcomes, and an internal error is a failed attempt.
 * Requeues the delivery uncounted when `signal` aborts, or when waiting for egress capacity could make it end after
 * `until` (performance.now).
 */
export const attemptDelivery = (
  services: Services,
  delivery: ClaimedDelivery,
  until: number,
  signal: AbortSignal,
): Promise<DeliveryAttemptOutcome> =>
  traced(deliverySpan, delivery, async span => {
    const outcome = await makeAttempt(services, delivery, until, signal)
    span?.set({ [MUSTER.outcome]: outcome.decision, [ATTRIBUTE.status]: outcome.status_code })
    if (outcome.decision !== 'done' && outcome.decision !== 'returned')
      span?.fail(outcome.status_code === null ? outcome.decision : String(outcome.status_code))
    return { ...outcome, capture: currentCapture() }
  })

const deliverySpan = (delivery: ClaimedDelivery): SpanStart => ({
  name: 'deliver',
  kind: 'client',
  unit: true,
  // One event may have many deliveries, long after its work.
  from: { context: delivery.trace_context, at: '', linked: true },
  attributes: {
    [MUSTER.project]: delivery.project_id,
    [MUSTER.event]: delivery.event_type,
    [MUSTER.delivery]: delivery.id,
    [MUSTER.attempt]: delivery.attempts + 1,
    ...hostAttributes(delivery.url),
  },
})

async function makeAttempt(
  services: Services,
  delivery: ClaimedDelivery,
  until: number,
  signal: AbortSignal,
): Promise<DeliveryAttemptOutcome> {
  try {
    return await postDelivery(services, delivery, until, signal)
  } catch (error) {
    const message = error instanceof AppError ? error.message : 'internal error'
    const failure = { kind: 'failed', reason: 'connect', message } as const
    return { ...toOutcome(failure, delivery.attempts + 1, signal), error }
  }
}

async function postDelivery(
  services: Services,
  delivery: ClaimedDelivery,
  until: number,
  signal: AbortSignal,
): Promise<DeliveryAttemptOutcome> {
  const { config, clock, egress, secrets, log } = services
  const sealed = sealedForWebhook(delivery.webhook_id, delivery.project_id)
  const opened = secrets.open(delivery.sealed_secret, sealed)
  if (!opened.ok) return closed('webhook secret cannot be decrypted')
  const keys = [opened.value]
  const now = clock.now()
  if (delivery.previous_sealed_secret && now < new Date(delivery.previous_secret_until ?? 0)) {
    const previous = secrets.open(delivery.previous_sealed_secret, sealed)
    if (previous.ok) keys.push(previous.value)
    else log.warn({ webhook_id: delivery.webhook_id }, 'previous webhook secret decryption failed')
  }
  const more = delivery.sealed_headers === null ? null : secrets.open(delivery.sealed_headers, sealed)
  if (more && !more.ok) return closed('webhook headers cannot be decrypted')
  const key = await mailHeader(services, delivery)
  if (typeof key === 'string') return closed(key)
  const headers: Record<string, string> = { ...(more && JSON.parse(more.value)), ...key }
  const prefix = config.HEADER_PREFIX
  const body = deliveryBody(delivery.envelope, delivery, config)
  const outcome = await egress.request({
    url: delivery.url,
    method: 'POST',
    headers: {
      ...headers,
      'Content-Type': 'application/json',
      [`${prefix}Event`]: delivery.event_type,
      [`${prefix}Delivery`]: delivery.id,
      [`${prefix}Event-Id`]: delivery.event_id,
      [`${prefix}Signature`]: signDelivery(keys, body, now),
    },
    body,
    tenant: delivery.project_id,
    ...receiverLimits(config),
    waitMs: until - performance.now() - config.WEBHOOK_TIMEOUT_MS,
    sensitiveHeaders: Object.keys(headers),
    signal,
  })
  return toOutcome(outcome, delivery.attempts + 1, signal, [...keys, ...Object.values(headers).flatMap(credentialsIn)])
}

/** Value of a header that can be sent. */
const HEADER_VALUE = /^[\x20-\x7e]+$/

/**
 * Returns the header with the key of a mail service, none for other deliveries, or why the delivery cannot be sent. One statement with a
 * key. The key is not stored: a changed secret applies to the next attempt.
 */
async function mailHeader(
  services: Services,
  { project_id, template, secret_id }: ClaimedDelivery,
): Promise<Record<string, string> | string> {
  if (template === null || secret_id === null) return {}
  try {
    const key = await openSecret(services.pool, services, project_id, secret_id)
    return HEADER_VALUE.test(key) ? keyHeader(template, key) : `value of secret ${secret_id} is not a header value`
  } catch (error) {
    // Only the store of an external value may be available at the next attempt; its errors have a reason.
    if (error instanceof AppError && error.meta?.reason === undefined) return error.message
    throw error
  }
}

/** Returns a header value and its parts, such as the credentials after a scheme. */
export const credentialsIn = (value: string): string[] => [value, ...value.split(/\s+/)]

/** Converts the outcome of a request. `sent` are the secrets that the receiver may repeat in its response. */
function toOutcome(
  outcome: EgressOutcome,
  attempts: number,
  signal: AbortSignal,
  sent: readonly string[] = [],
): DeliveryAttemptOutcome {
  if (outcome.kind === 'blocked') return closed(`blocked by egress policy: ${outcome.reason}`)
  if (outcome.kind === 'failed' && (outcome.reason === 'busy' || (outcome.reason === 'aborted' && signal.aborted)))
    return requeuedOutcome
  const response = shownResponse(outcome, sent)
  if (outcome.kind === 'answer' && outcome.status >= 200 && outcome.status < 300)
    return { decision: 'done', status: 'completed', counted: true, retry_ms: null, ...response }
  return attempts < MAX_ATTEMPTS
    ? { decision: 'retry', status: 'queued', counted: true, retry_ms: retryDelayMs(attempts), ...response }
    : { decision: 'failed', status: 'failed', counted: true, retry_ms: null, ...response }
}

/** Returns the status and text of a response or failure as shown to callers, without the secrets that were sent. */
export const shownResponse = (
  outcome: Exclude<EgressOutcome, { kind: 'blocked' }>,
  sent: readonly string[],
): { status_code: number | null; response_body: string } =>
  outcome.kind === 'answer'
    ? { status_code: outcome.status, response_body: maskSecrets(outcome.body, sent, STORED_RESPONSE_BYTES) }
    : {
        status_code: outcome.status ?? null,
        response_body: singleLine(maskSecrets(`${outcome.reason}: ${outcome.message}`, sent)),
      }

const singleLine = (text: string): string =>
  truncateBytes(storableText(text).replace(/\s+/g, ' '), STORED_RESPONSE_BYTES)
