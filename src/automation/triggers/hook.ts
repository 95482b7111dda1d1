import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { operation, result, type StreamedBody, type StreamedRequest } from '../../core/api/operation.ts'
import { coalescedReads } from '../../core/db/coalesced-reads.ts'
import { sql } from '../../core/db/sql.ts'
import { withTenant } from '../../core/db/tenant-context.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { hookBytes, hookJson, refuseDeclared } from '../hooks/body.ts'
import { effectiveInput } from './input.ts'
import { firingKind, HookAnswer, sealedForTrigger, triggerKind } from './model.ts'
import { triggerFiringQueue } from './queue.ts'
import { findWebhookTrigger, firingOfKey, triggerFiringCte, type WebhookTrigger } from './store.ts'
import { checkFiring } from './targets.ts'

/** The address at which a webhook trigger is called from outside, signed with its secret. */

/** Signatures of one call: a sender that changes its secret sends two. */
const MOST_SIGNATURES = 10
/** Behind which others of the project are served. */
const PATIENCE_MS = 10_000
/** How long a trigger that was read is good for. */
const FRESH_MS = 1000

export const hookUrl = ({ config }: Pick<Services, 'config'>, triggerId: string): string =>
  `${config.BASE_URL}/api/v1/hooks/triggers/${triggerId}`

/** The secrets that verify now. Raises SECRET_NOT_DECRYPTABLE. */
function secretsOf({ secrets }: Services, trigger: WebhookTrigger, now: Date): string[] {
  const { id, project_id, sealed_secret, previous_sealed_secret, previous_secret_until } = trigger
  const opened = secrets.open(sealed_secret as string, sealedForTrigger(id, project_id))
  if (!opened.ok) return raise('SECRET_NOT_DECRYPTABLE', { meta: { id } })
  if (previous_sealed_secret === null || now >= new Date(previous_secret_until ?? 0)) return [opened.value]
  const previous = secrets.open(previous_sealed_secret, sealedForTrigger(id, project_id))
  return previous.ok ? [opened.value, previous.value] : [opened.value]
}

const DIGEST = /^[0-9a-f]{64}$/

/** Whether one of some digests is that of one of some secrets; compared in constant time. */
function verified(
  secrets: readonly string[],
  digests: readonly string[],
  parts: readonly (string | Buffer)[],
): boolean {
  let found = false
  for (const secret of secrets) {
    const hmac = createHmac('sha256', secret)
    for (const part of parts) hmac.update(part)
    const expected = hmac.digest()
    for (const digest of digests) if (timingSafeEqual(Buffer.from(digest, 'hex'), expected)) found = true
  }
  return found
}

const digestsOf = (values: readonly string[]): string[] =>
  values.map(value => value.toLowerCase()).filter(value => DIGEST.test(value))

/** What a call says it is signed with: digests, of the time and the body or of the body alone. */
type Signature = { digests: string[]; signed: string[] }

/** The signature of a call, which its body is to be verified with. Raises UNAUTHORIZED for none, or one of long ago. */
function signatureOf({ config, clock }: Services, trigger: WebhookTrigger, req: IncomingMessage): Signature {
  const standard = `${config.HEADER_PREFIX}Signature`
  const { signature_scheme, signature_header } = trigger
  const given = req.headers[(signature_header ?? standard).toLowerCase()]
  const text = Array.isArray(given) ? given.join(',') : (given ?? '')
  const refuse = (): never => raise('UNAUTHORIZED')
  if (signature_scheme === 'body_sha256') {
    const digests = text.startsWith('sha256=') ? digestsOf([text.slice(7)]) : []
    return digests.length === 0 ? refuse() : { digests, signed: [] }
  }
  const items = text.split(',').map(item => item.trim().split('='))
  const times = items.filter(([name]) => name === 't').map(([, value]) => value ?? '')
  const digests = digestsOf(items.filter(([name]) => name === 'v1').map(([, value]) => value ?? ''))
  if (times.length !== 1 || !/^\d{1,12}$/.test(times[0]) || digests.length === 0 || digests.length > MOST_SIGNATURES)
    refuse()
  const off = Math.abs(clock.now().getTime() / 1000 - Number(times[0]))
  return off > config.TRIGGER_HOOK_TOLERANCE_SECONDS ? refuse() : { digests, signed: [`${times[0]}.`] }
}

/** The key under which a call is taken once: of what is signed, whichever secret did. */
function keyOf(...parts: (string | Buffer)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(part)
  return hash.digest('hex')
}

/** What a body says; what is no object is the payload. */
function inputOf(body: Buffer): Record<string, unknown> {
  const value = hookJson(body)
  return isObject(value) ? value : { payload: value }
}

type Accepted = z.output<typeof HookAnswer>

/** What the pipeline is given as the body is what became of it. */
const HookBody = z.looseObject({}).describe('Any JSON; it is the input of the firing').meta({ id: 'TriggerHookBody' })

/** Takes a call: the trigger fires in the background, once for a key. */
async function accept(services: Services, trigger: WebhookTrigger, key: string, body: Buffer): Promise<Accepted> {
  const { id: trigger_id, project_id, target_type, active, paused_at, pause_reason } = trigger
  if (!active) raise('TRIGGER_NOT_ACTIVE', { meta: { trigger_id } })
  const paused = (reason: string | null): never =>
    raise('PROJECT_PAUSED', { meta: { project_id, pause_reason: reason } })
  if (paused_at !== null) paused(pause_reason)
  const facts = { source: 'webhook' as const, scheduled_for: null, fired_at: services.clock.now().toISOString() }
  const id = newId(firingKind.prefix)
  const input = effectiveInput(trigger, inputOf(body), { ...facts, id })
  await checkFiring(services, trigger, { input, causation_chain: [], asked_by: null })
  const firing = { id, project_id, trigger_id, source: 'webhook' as const, target_type, input, idempotency_key: key }
  const { held, stopped, reason } = await services.writeOne<{ stopped: boolean; reason: string | null }>(outgoing => {
    outgoing.send(triggerFiringQueue, { firing_id: id, project_id })
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
  if (stopped) paused(reason)
  const first = await firingOfKey(services.pool, trigger_id, key)
  if (!first) return raise('RESOURCE_NOT_FOUND', { meta: { id: trigger_id } })
  return { firing_id: first.id, trigger_id, status: first.status }
}

/** A hook is often called many times at once. */
const hookedReads = processSingleton(() => coalescedReads<WebhookTrigger | null>())

/** Raises RESOURCE_NOT_FOUND. */
async function hooked(services: Services, id: string): Promise<WebhookTrigger> {
  const trigger = isIdOf(triggerKind, id)
    ? await hookedReads(services)(id, () => findWebhookTrigger(services.pool, id))
    : null
  return trigger ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/**
 * Everything about a call but its answer: its body is read once, as bytes, and only what is signed counts. Nothing of it is
 * read where the call is refused whatever it holds.
 */
async function receive(request: StreamedRequest): Promise<StreamedBody> {
  const { req, params, services } = request
  const { trigger_id: id } = params
  refuseDeclared(req)
  const found = await hooked(services, id)
  secretsOf(services, found, services.clock.now())
  signatureOf(services, found, req)
  const foundAt = performance.now()
  const body = await hookBytes(request, id)
  // A slow body may outlast the secret, or the trigger.
  const trigger = performance.now() - foundAt < FRESH_MS ? found : await hooked(services, id)
  const { digests, signed } = signatureOf(services, trigger, req)
  const parts = [...signed, body]
  if (!verified(secretsOf(services, trigger, services.clock.now()), digests, parts)) raise('UNAUTHORIZED')
  const tenancy = { tenant: trigger.project_id, patienceMs: PATIENCE_MS }
  const accepted = await withTenant(tenancy, () => accept(services, trigger, keyOf(...parts), body))
  return { body: accepted, discard: async () => {} }
}

export const callHook = operation({
  id: 'callTriggerHook',
  method: 'post',
  path: '/hooks/triggers/{trigger_id}',
  summary: 'Fire a webhook trigger by a signed call',
  description:
    'No bearer token: the call is signed with the secret of the trigger, `X-Svc-Signature: t=<unix seconds>,v1=<hex>` with the HMAC-SHA256 of `<t>.<body>`. The body, at most 1 MiB, is JSON whatever its type says; what is no object arrives as `payload`. A call that is repeated gets the first firing.',
  tag: 'Triggers',
  gate: 'public',
  about: triggerKind,
  body: HookBody,
  receive,
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
