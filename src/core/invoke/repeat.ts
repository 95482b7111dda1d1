import { AppError, errorBody, invalid } from '../api/errors.ts'
import {
  claimIdempotency,
  type IdempotencyClaim,
  type Kept,
  keepAnswer,
  keptAnswer,
  releaseIdempotency,
} from '../api/idempotency.ts'
import { type Answer, answer } from '../api/operation.ts'
import { checkStorable } from '../api/validate.ts'
import { recordGiven } from './audit-trail.ts'
import type { Invocation } from './invocation.ts'

/** Step: a POST with an Idempotency-Key is carried out once; a repeat gets the first answer. */

const IDEMPOTENCY_KEY = /^[\x21-\x7e]{1,255}$/

/** What identifies the call among those of its key; null without a key that can be one. */
function requestOf({ caller, call, project, received, body }: Invocation) {
  const { idempotencyKey: key } = call
  if (!caller || key === undefined || !IDEMPOTENCY_KEY.test(key)) return null
  return {
    credential_id: caller.credential.id,
    project_id: project,
    path: call.path,
    key,
    request: JSON.stringify([call.query, (received ? body : call.body) ?? null]),
  }
}

/** Claims the key; the kept answer of a repeat, null for a first call. Raises what refuses the key. */
export async function claim(inv: Invocation): Promise<Kept | null> {
  if (inv.call.idempotencyKey === undefined || !inv.caller) return null
  const request = requestOf(inv)
  if (!request)
    return invalid({
      code: 'INVALID_VALUE',
      path: 'Idempotency-Key',
      message: 'must be 1 to 255 visible ASCII characters',
    })
  const claimed = await claimIdempotency(inv.db, inv.services, request)
  if (claimed.kind === 'replay') return claimed.answer
  inv.idempotency = claimed.claim
  return null
}

/** The answer kept for a POST whose resource is not there: the first call may have deleted it. */
export async function keptForGone(inv: Invocation, error: unknown): Promise<Kept | null> {
  const { method, shape } = inv.operation
  if (method !== 'post' || shape !== 'item' || !(error instanceof AppError) || error.status !== 404) return null
  // Nothing was ever answered to a body that cannot be stored, and one that is nested too deep cannot be written out.
  if (checkStorable(inv.call.body)) return null
  const request = requestOf(inv)
  return request && (await keptAnswer(inv.db, inv.services.secrets, request))
}

export async function replay(inv: Invocation, kept: Kept): Promise<Answer> {
  const given = answer(kept.status, kept.body, { ...kept.headers, 'Idempotency-Replayed': 'true' })
  inv.audit.project_id ??= kept.project_id
  inv.audit.detail.idempotency_replayed = true
  await recordGiven(inv, given)
  return given
}

/** Keeps the answer of an operation that has transactions of its own. */
export async function keepGiven(inv: Invocation, given: Answer): Promise<void> {
  const { idempotency, operation, services, db } = inv
  if (!idempotency) return
  // A stream cannot be given again: its key is free for another call.
  if (given.stream) await releaseIdempotency(db, idempotency)
  else await keepAnswer(db, services, idempotency, given.kept ?? given, operation.secretAnswer)
}

/** A refusal is kept like an answer; after a failure the key is free again. */
export async function keepRefusal(inv: Invocation, error: unknown): Promise<void> {
  const { services, db } = inv
  const claim = inv.idempotency as IdempotencyClaim
  try {
    if (error instanceof AppError && error.status < 500) {
      const body = errorBody(error, services.config.DOCS_BASE_URL)
      await keepAnswer(db, services, claim, { status: error.status, body, headers: error.headers }, false)
    } else await releaseIdempotency(db, claim)
  } catch (failure) {
    services.log.error({ err: failure }, 'idempotency answer not kept')
  }
}
