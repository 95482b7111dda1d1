import { randomUUID } from 'node:crypto'
import { AppError, errorBody, raiseInvalid } from '../api/errors.ts'
import {
  claimIdempotencyKey,
  findStoredResponse,
  forgetIdempotency,
  type IdempotencyClaim,
  releaseIdempotencyKey,
  type StoredResponse,
  storeResponse,
} from '../api/idempotency.ts'
import { type OperationResult, result } from '../api/operation.ts'
import { storabilityProblem } from '../api/validate.ts'
import { isDatabaseError, isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { auditResult } from './audit-trail.ts'
import type { Invocation } from './invocation.ts'
import { heldClaims } from './leases.ts'

/**
 * Step: a POST with an Idempotency-Key is carried out once; a repeat gets the first answer. What an operation makes commits
 * together with its answer, or with what the answer is made of: a process that is killed behind the commit, and an error
 * there, leave both. A claim is a lease, so that the key of a process that was lost is soon free.
 */

/** How long a request waits for a database that does not take its claim. */
const CLAIM_PATIENCE_MS = 2000

/** How long the last write of a claim is tried again, while its lease is renewed. */
const SETTLE_PATIENCE_MS = 900_000

export const REPLAYED = { 'Idempotency-Replayed': 'true' }

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
export async function claimKey(inv: Invocation): Promise<StoredResponse | null> {
  if (inv.call.idempotencyKey === undefined || !inv.caller) return null
  const request = requestOf(inv)
  if (!request)
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'Idempotency-Key',
      message: 'must be 1 to 255 visible ASCII characters',
    })
  const claimed = { ...request, claim: randomUUID() }
  try {
    const { kept, made } = await retryWhileUnavailable(() => claimIdempotencyKey(inv.db, inv.services, claimed), {
      withinMs: inv.call.tx ? 0 : CLAIM_PATIENCE_MS,
    })
    if (kept) return kept
    inv.idempotency = { ...claimed, made }
    // In a transaction of the caller's nobody sees the claim before it is settled.
    if (!inv.call.tx) heldClaims(inv.services).hold(claimed)
    return null
  } catch (error) {
    // It may have been committed all the same.
    if (isTransient(error) && !inv.call.tx) await endClaim(inv, claimed, () => releaseIdempotencyKey(inv.db, claimed))
    throw error
  }
}

/** The answer kept for a POST whose resource is not there: the first call may have deleted it. */
export async function responseForDeleted(inv: Invocation, error: unknown): Promise<StoredResponse | null> {
  const { method, shape } = inv.operation
  if (method !== 'post' || shape !== 'item' || !(error instanceof AppError) || error.status !== 404) return null
  // Nothing was ever answered to a body that cannot be stored, and one that is nested too deep cannot be written out.
  if (storabilityProblem(inv.call.body)) return null
  const request = requestOf(inv)
  return request && (await findStoredResponse(inv.db, inv.services.secrets, request))
}

export async function replayResponse(inv: Invocation, kept: StoredResponse): Promise<OperationResult> {
  const given = result(kept.status, kept.body, { ...kept.headers, ...REPLAYED })
  inv.audit.project_id ??= kept.project_id
  inv.audit.detail.idempotency_replayed = true
  await auditResult(inv, given)
  return given
}

/** Renews the lease of the call's claim no more, once its last write is made. */
export const endLease = ({ services, idempotency }: Invocation): void => {
  if (idempotency) heldClaims(services).drop(idempotency)
}

/**
 * Makes the last write of a claim. While the database is unavailable it is made again behind the answer, so that no repeat
 * is carried out again because the answer could not be kept at once.
 */
async function endClaim(
  { call, services }: Invocation,
  claim: IdempotencyClaim,
  write: () => Promise<unknown>,
): Promise<void> {
  const failed = (error: unknown) => services.log.error({ err: error }, 'idempotency claim not ended')
  const ended = () => heldClaims(services).drop(claim)
  try {
    await write()
  } catch (error) {
    if (!call.tx && isTransient(error)) {
      void retryWhileUnavailable(write, { withinMs: SETTLE_PATIENCE_MS }).catch(failed).finally(ended)
      return
    }
    failed(error)
  }
  ended()
}

/** Keeps the answer of an operation that has transactions of its own. */
export async function storeOperationResult(inv: Invocation, given: OperationResult): Promise<void> {
  const { idempotency, operation, services, db } = inv
  if (!idempotency) return
  if (inv.kept) return endLease(inv)
  // A stream is not kept: the repeat streams anew what was made, if anything was. Nor is what is said to a client that has
  // left, whose repeat waits for more.
  const unheard = inv.noted && inv.call.request.closed.aborted
  await endClaim(inv, idempotency, () =>
    given.stream || unheard
      ? releaseIdempotencyKey(db, idempotency)
      : storeResponse(db, services, idempotency, given.kept ?? given, operation.secretAnswer),
  )
}

/** Whether an error is the end of the work and not of the answer alone: it tells the caller what came of it. */
const isOutcome = (error: unknown): error is AppError =>
  error instanceof AppError && error.code !== 'SERVICE_NOT_READY' && !isDatabaseError(error)

/**
 * A refusal is kept like an answer; after a failure the key is free again. After one that says nothing of what was made, the
 * repeat answers for that.
 */
export async function storeRefusal(inv: Invocation, error: unknown): Promise<void> {
  const { services, db } = inv
  const claim = inv.idempotency as IdempotencyClaim
  await endClaim(inv, claim, () => {
    if (!isOutcome(error)) return releaseIdempotencyKey(db, claim)
    const { status, headers } = error
    if (status >= 500) return forgetIdempotency(db, claim)
    const body = errorBody(error, services.config.DOCS_BASE_URL)
    return storeResponse(db, services, claim, { status, body, headers }, false)
  })
}
