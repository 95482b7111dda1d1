import { randomUUID } from 'node:crypto'
import { AppError, errorBody, invalid } from '../api/errors.ts'
import {
  claimIdempotency,
  type IdempotencyClaim,
  type Kept,
  keepAnswer,
  keptAnswer,
  LOST_AFTER_SECONDS,
  releaseIdempotency,
} from '../api/idempotency.ts'
import { type Answer, answer } from '../api/operation.ts'
import { checkStorable } from '../api/validate.ts'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { recordGiven } from './audit-trail.ts'
import type { Invocation } from './invocation.ts'

/** Step: a POST with an Idempotency-Key is carried out once; a repeat gets the first answer. */

/** How long a request waits for a database that does not take its claim. */
const CLAIM_PATIENCE_MS = 2000

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
  const claimed = { ...request, claim: randomUUID() }
  try {
    const kept = await retryWhileUnavailable(() => claimIdempotency(inv.db, inv.services, claimed), {
      withinMs: inv.call.tx ? 0 : CLAIM_PATIENCE_MS,
    })
    if (!kept) inv.idempotency = claimed
    return kept
  } catch (error) {
    // It may have been committed all the same.
    if (isTransient(error) && !inv.call.tx) await endClaim(inv, () => releaseIdempotency(inv.db, claimed))
    throw error
  }
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

/**
 * Makes the last write of a claim. While the database is unavailable it is made again behind the answer, so that repeats are
 * not told for a quarter of an hour that the first request still runs.
 */
async function endClaim({ call, services }: Invocation, write: () => Promise<void>): Promise<void> {
  const failed = (error: unknown) => services.log.error({ err: error }, 'idempotency claim not ended')
  try {
    await write()
  } catch (error) {
    if (call.tx || !isTransient(error)) return failed(error)
    void retryWhileUnavailable(write, { withinMs: LOST_AFTER_SECONDS * 1000 }).catch(failed)
  }
}

/** Keeps the answer of an operation that has transactions of its own. */
export async function keepGiven(inv: Invocation, given: Answer): Promise<void> {
  const { idempotency, operation, services, db } = inv
  if (!idempotency) return
  // A stream cannot be given again: its key is free for another call.
  await endClaim(inv, () =>
    given.stream
      ? releaseIdempotency(db, idempotency)
      : keepAnswer(db, services, idempotency, given.kept ?? given, operation.secretAnswer),
  )
}

/** A refusal is kept like an answer; after a failure the key is free again. */
export async function keepRefusal(inv: Invocation, error: unknown): Promise<void> {
  const { services, db } = inv
  const claim = inv.idempotency as IdempotencyClaim
  await endClaim(inv, () => {
    if (!(error instanceof AppError) || error.status >= 500) return releaseIdempotency(db, claim)
    const body = errorBody(error, services.config.DOCS_BASE_URL)
    return keepAnswer(db, services, claim, { status: error.status, body, headers: error.headers }, false)
  })
}
