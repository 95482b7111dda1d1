import { createHmac } from 'node:crypto'
import { storableText, truncateBytes } from '../../core/api/storable-text.ts'
import type { EgressOutcome } from '../../core/net/egress.ts'
import type { Services } from '../../core/process/services.ts'
import type { ClaimedDelivery } from './delivery-store.ts'
import { MAX_ATTEMPTS, sealedForWebhook } from './model.ts'

/** Bytes of an answer that are kept. */
const ANSWER_BYTES = 1024

const FIRST_BACKOFF_MS = 1000
const JITTER = 0.25

/** What one attempt came to: what is recorded, and what the log says of it. */
export type DeliveryAttemptOutcome = {
  decision: 'done' | 'retry' | 'failed' | 'closed' | 'returned'
  status: 'queued' | 'completed' | 'failed'
  status_code: number | null
  /** The attempt was made. One that was refused or cut off does not count. */
  counted: boolean
  retry_ms: number | null
  response_body: string | null
  /** A fault of ours that broke the attempt; for the log alone. */
  error?: unknown
}

/** Refused before anything was sent: no retry, attempts unchanged. */
const closed = (reason: string): DeliveryAttemptOutcome => ({
  decision: 'closed',
  status: 'failed',
  status_code: null,
  counted: false,
  retry_ms: null,
  response_body: reason,
})

/** Given back untouched. */
export const requeuedOutcome: DeliveryAttemptOutcome = {
  decision: 'returned',
  status: 'queued',
  status_code: null,
  counted: false,
  retry_ms: null,
  response_body: null,
}

/**
 * `t=<unix seconds>,v1=<hex>`: HMAC-SHA256 over `<t>.<body>`, one `v1` for each secret.
 * @param secrets the secret strings; their UTF-8 bytes are the keys
 */
export function signDelivery(secrets: readonly string[], body: string | Buffer, now: Date): string {
  const t = Math.floor(now.getTime() / 1000)
  const parts = secrets.map(secret => `v1=${createHmac('sha256', secret).update(`${t}.`).update(body).digest('hex')}`)
  return `t=${t},${parts.join(',')}`
}

/** Time until the next attempt after `attempts` failed ones: 1 s, then 2 s, plus up to a quarter. */
export const retryDelayMs = (attempts: number): number =>
  FIRST_BACKOFF_MS * 2 ** (attempts - 1) * (1 + Math.random() * JITTER)

/**
 * One attempt: opens the secret, signs, posts, reads the answer. Never throws: what a receiver does is an outcome, and
 * a fault of ours is a failed attempt. `signal` cuts it off, and it is given back when it has to wait so long that it
 * could end after `until` (performance.now); it then counts for nothing.
 */
export async function attemptDelivery(
  services: Services,
  delivery: ClaimedDelivery,
  until: number,
  signal: AbortSignal,
): Promise<DeliveryAttemptOutcome> {
  try {
    return await send(services, delivery, until, signal)
  } catch (error) {
    const broken = { kind: 'failed', reason: 'connect', message: 'internal error' } as const
    return { ...outcomeOf(broken, delivery.attempts + 1, signal), error }
  }
}

async function send(
  services: Services,
  delivery: ClaimedDelivery,
  until: number,
  signal: AbortSignal,
): Promise<DeliveryAttemptOutcome> {
  const { config, clock, egress, secrets, log } = services
  const sealed = sealedForWebhook(delivery.webhook_id, delivery.project_id)
  const opened = secrets.open(delivery.sealed_secret, sealed)
  if (!opened.ok) return closed('the secret of the webhook cannot be decrypted')
  const keys = [opened.value]
  const now = clock.now()
  if (delivery.previous_sealed_secret && now < new Date(delivery.previous_secret_until ?? 0)) {
    const previous = secrets.open(delivery.previous_sealed_secret, sealed)
    if (previous.ok) keys.push(previous.value)
    else log.warn({ webhook_id: delivery.webhook_id }, 'previous secret of a webhook cannot be decrypted')
  }
  const prefix = config.HEADER_PREFIX
  const outcome = await egress.request({
    url: delivery.url,
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      [`${prefix}Event`]: delivery.event_type,
      [`${prefix}Delivery`]: delivery.id,
      [`${prefix}Event-Id`]: delivery.event_id,
      [`${prefix}Signature`]: signDelivery(keys, delivery.envelope, now),
    },
    body: delivery.envelope,
    tenant: delivery.project_id,
    timeoutMs: config.WEBHOOK_TIMEOUT_MS,
    waitMs: until - performance.now() - config.WEBHOOK_TIMEOUT_MS,
    connectTimeoutMs: config.WEBHOOK_TIMEOUT_MS,
    maxRedirects: config.EGRESS_MAX_REDIRECTS,
    redirectMode: 'repost',
    // With one more byte it is known whether the last character is whole.
    maxBytes: ANSWER_BYTES + 1,
    truncate: true,
    signal,
  })
  return outcomeOf(outcome, delivery.attempts + 1, signal)
}

function outcomeOf(outcome: EgressOutcome, attempts: number, signal: AbortSignal): DeliveryAttemptOutcome {
  if (outcome.kind === 'blocked') return closed(`blocked by the egress rule: ${outcome.reason}`)
  if (outcome.kind === 'failed' && (outcome.reason === 'busy' || (outcome.reason === 'aborted' && signal.aborted)))
    return requeuedOutcome
  const answered =
    outcome.kind === 'answer'
      ? { status_code: outcome.status, response_body: storableText(truncateBytes(outcome.body, ANSWER_BYTES)) }
      : { status_code: outcome.status ?? null, response_body: oneLine(`${outcome.reason}: ${outcome.message}`) }
  if (outcome.kind === 'answer' && outcome.status >= 200 && outcome.status < 300)
    return { decision: 'done', status: 'completed', counted: true, retry_ms: null, ...answered }
  return attempts < MAX_ATTEMPTS
    ? { decision: 'retry', status: 'queued', counted: true, retry_ms: retryDelayMs(attempts), ...answered }
    : { decision: 'failed', status: 'failed', counted: true, retry_ms: null, ...answered }
}

const oneLine = (text: string): string => truncateBytes(storableText(text).replace(/\s+/g, ' '), ANSWER_BYTES)
