import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { z } from 'zod'
import { isIdOf } from '#core/api/kind.ts'
import { operation, result, type StreamedBody, type StreamedRequest } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { coalescedReads } from '#core/db/coalesced-reads.ts'
import { sql } from '#core/db/sql.ts'
import { withTenant } from '#core/db/tenant-context.ts'
import { hookBytes, hookJson, refuseDeclared } from '../inbound/receive-body.ts'
import { wakeFiring } from './fire.ts'
import { effectiveInput } from './input.ts'
import { firingKind, HookAnswer, sealedForTrigger, triggerKind } from './model.ts'
import { findFiringByKey, findWebhookTrigger, triggerFiringCte, type WebhookTrigger } from './store.ts'
import { checkFiring } from './targets.ts'

/** Signatures per call. A sender sends two while it rotates its secret. */
const MAX_SIGNATURES = 10
/** Time that a call may wait for a database slot of its project. */
const MAX_TENANT_WAIT_MS = 10_000
/** Time after which a trigger that was read before the body is read again. */
const TRIGGER_MAX_AGE_MS = 1000

export const hookUrl = ({ config }: Pick<Services, 'config'>, triggerId: string): string =>
  `${config.BASE_URL}/api/v1/hooks/triggers/${triggerId}`

/** Returns the secrets that are valid at `now`. @throws SECRET_NOT_DECRYPTABLE */
function validSecrets({ secrets }: Services, trigger: WebhookTrigger, now: Date): string[] {
  const { id, project_id, sealed_secret, previous_sealed_secret, previous_secret_until } = trigger
  const opened = secrets.open(sealed_secret as string, sealedForTrigger(id, project_id))
  if (!opened.ok) return raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
  if (previous_sealed_secret === null || now >= new Date(previous_secret_until ?? 0)) return [opened.value]
  const previous = secrets.open(previous_sealed_secret, sealedForTrigger(id, project_id))
  return previous.ok ? [opened.value, previous.value] : [opened.value]
}

const DIGEST = /^[0-9a-f]{64}$/

/** Whether any digest is the HMAC of `parts` with any secret. Compares in constant time. */
function isVerified(
  secrets: readonly string[],
  digests: readonly string[],
  parts: readonly (string | Buffer)[],
): boolean {
  let matches = false
  for (const secret of secrets) {
    const hmac = createHmac('sha256', secret)
    for (const part of parts) hmac.update(part)
    const expected = hmac.digest()
    for (const digest of digests) if (timingSafeEqual(Buffer.from(digest, 'hex'), expected)) matches = true
  }
  return matches
}

const validDigests = (values: readonly string[]): string[] =>
  values.map(value => value.toLowerCase()).filter(value => DIGEST.test(value))

/** Digests of a call, and the signed parts that precede the body. */
type Signature = { digests: string[]; signed: string[] }

/** Parses the signature header. @throws UNAUTHORIZED if it is missing, malformed or outside the time tolerance */
function parseSignature({ config, clock }: Services, trigger: WebhookTrigger, req: IncomingMessage): Signature {
  const standard = `${config.HEADER_PREFIX}Signature`
  const { signature_scheme, signature_header } = trigger
  const header = req.headers[(signature_header ?? standard).toLowerCase()]
  const text = Array.isArray(header) ? header.join(',') : (header ?? '')
  const refuse = (): never => raise('UNAUTHORIZED')
  if (signature_scheme === 'body_sha256') {
    const digests = text.startsWith('sha256=') ? validDigests([text.slice(7)]) : []
    return digests.length === 0 ? refuse() : { digests, signed: [] }
  }
  const items = text.split(',').map(item => item.trim().split('='))
  const times = items.filter(([name]) => name === 't').map(([, value]) => value ?? '')
  const digests = validDigests(items.filter(([name]) => name === 'v1').map(([, value]) => value ?? ''))
  if (times.length !== 1 || !/^\d{1,12}$/.test(times[0]) || digests.length === 0 || digests.length > MAX_SIGNATURES)
    refuse()
  const skewSeconds = Math.abs(clock.now().getTime() / 1000 - Number(times[0]))
  return skewSeconds > config.TRIGGER_HOOK_TOLERANCE_SECONDS ? refuse() : { digests, signed: [`${times[0]}.`] }
}

/** Returns the idempotency key of a call: the hash of the signed parts, independent of the secret. */
function idempotencyKeyOf(...parts: (string | Buffer)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(part)
  return hash.digest('hex')
}

/** Returns the body as input. A value that is not an object is wrapped as `payload`. */
function bodyInput(body: Buffer): Record<string, unknown> {
  const value = hookJson(body)
  return isObject(value) ? value : { payload: value }
}

type AcceptedCall = z.output<typeof HookAnswer>

/** `receive` replaces the body by the accepted call, hence the loose schema. */
const HookBody = z.looseObject({}).describe('Any JSON value; the input of the firing').meta({ id: 'TriggerHookBody' })

/** Creates the firing of a verified call, once per key, for processing in the background. */
async function acceptCall(
  services: Services,
  trigger: WebhookTrigger,
  key: string,
  body: Buffer,
): Promise<AcceptedCall> {
  const { id: trigger_id, project_id, target_type, active, paused_at, pause_reason } = trigger
  if (!active) raise('TRIGGER_NOT_ACTIVE', { meta: { trigger_id } })
  const raisePaused = (reason: string | null): never =>
    raise('PROJECT_PAUSED', { meta: { project_id, pause_reason: reason } })
  if (paused_at !== null) raisePaused(pause_reason)
  const facts = { source: 'webhook' as const, scheduled_for: null, fired_at: services.clock.now().toISOString() }
  const id = newId(firingKind.prefix)
  const input = await effectiveInput(services, trigger, bodyInput(body), { ...facts, id })
  await checkFiring(services, trigger, { input, causation_chain: [], asked_by: null })
  const firing = { id, project_id, trigger_id, source: 'webhook' as const, target_type, input, idempotency_key: key }
  const { held, stopped, reason } = await services.writeOne<{ stopped: boolean; reason: string | null }>(outbox => {
    wakeFiring(outbox, firing)
    return {
      ctes: [
        sql.fragment`project as (select paused_at, pause_reason from projects where id = ${project_id} for share)`,
        sql.fragment`made as (${triggerFiringCte(firing, sql.fragment`from project where paused_at is null`)})`,
      ],
      guard: sql.fragment`exists (select from made)`,
      columns: sql.fragment`exists (select from project where paused_at is not null) as stopped,
        (select pause_reason from project) as reason`,
    }
  })
  await injectFault(services, 'trigger_accepted')
  if (held) return { firing_id: id, trigger_id, status: 'pending' }
  if (stopped) raisePaused(reason)
  const first = await findFiringByKey(services.pool, trigger_id, key)
  if (!first) return raise('RESOURCE_NOT_FOUND', { meta: { id: trigger_id } })
  return { firing_id: first.id, trigger_id, status: first.status }
}

/** Concurrent calls of a trigger share one read. */
const triggerReads = processSingleton(() => coalescedReads<WebhookTrigger | null>())

/** @throws RESOURCE_NOT_FOUND */
async function requireWebhookTrigger(services: Services, id: string): Promise<WebhookTrigger> {
  const trigger = isIdOf(triggerKind, id)
    ? await triggerReads(services)(id, () => findWebhookTrigger(services.pool, id))
    : null
  return trigger ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/**
 * Verifies and accepts a call. The body is read once, as the bytes that are signed, and only after the checks that do
 * not depend on it.
 */
async function receiveCall(request: StreamedRequest): Promise<StreamedBody> {
  const { req, params, services } = request
  const { trigger_id: id } = params
  refuseDeclared(req)
  const found = await requireWebhookTrigger(services, id)
  validSecrets(services, found, services.clock.now())
  parseSignature(services, found, req)
  const foundAt = performance.now()
  const body = await hookBytes(request, id)
  // The secret or the trigger may have changed during a slow upload.
  const trigger = performance.now() - foundAt < TRIGGER_MAX_AGE_MS ? found : await requireWebhookTrigger(services, id)
  const { digests, signed } = parseSignature(services, trigger, req)
  const parts = [...signed, body]
  if (!isVerified(validSecrets(services, trigger, services.clock.now()), digests, parts)) raise('UNAUTHORIZED')
  const tenancy = { tenant: trigger.project_id, patienceMs: MAX_TENANT_WAIT_MS }
  const accepted = await withTenant(tenancy, () => acceptCall(services, trigger, idempotencyKeyOf(...parts), body))
  return { body: accepted, discard: async () => {} }
}

export const callHook = operation({
  id: 'callTriggerHook',
  method: 'post',
  path: '/hooks/triggers/{trigger_id}',
  summary: 'Call a webhook trigger',
  description:
    'Authenticated by a signature with the secret of the trigger instead of a bearer token: `X-Svc-Signature: t=<unix seconds>,v1=<hex>` with the HMAC-SHA256 of `<t>.<body>`. The body is parsed as JSON regardless of its content type and may have at most 1 MiB; a value that is not an object becomes `payload`. A repeated call returns the first firing.',
  tag: 'Triggers',
  gate: 'public',
  about: triggerKind,
  body: HookBody,
  receive: receiveCall,
  answers: { 202: HookAnswer },
  raises: [
    'HOOK_PAYLOAD_TOO_LARGE',
    'RESOURCE_NOT_FOUND',
    'SECRET_NOT_DECRYPTABLE',
    'UNAUTHORIZED',
    'TRIGGER_NOT_ACTIVE',
    'PROJECT_PAUSED',
    'HOOK_INVALID_JSON',
    'TRIGGER_CREATOR_UNAVAILABLE',
    'TRIGGER_TARGET_NOT_FOUND',
    'TRIGGER_INPUT_INVALID',
    'SYSTEM_MESSAGE_NOT_ALLOWED',
    'FORBIDDEN',
  ],
  transaction: false,
  internal: true,
  run: async ({ body }) => result(202, body),
})
