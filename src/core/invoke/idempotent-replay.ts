import { randomUUID } from 'node:crypto'
import {
  claimIdempotencyKey,
  deleteIdempotencyKey,
  findStoredResponse,
  type IdempotencyClaim,
  LEASE_SECONDS,
  releaseIdempotencyKey,
  renewClaims,
  type StoredResponse,
  storeResponse,
} from '../api/idempotency.ts'
import { type OperationResult, result } from '../api/operation.ts'
import { storabilityProblem } from '../api/validate.ts'
import { AppError, errorBody, raiseInvalid } from '../base/errors.ts'
import { settledWithin } from '../base/event-loop.ts'
import { exclusiveLoop } from '../base/loop.ts'
import { processSingleton } from '../base/process-singleton.ts'
import { isDatabaseError, isTransient } from '../db/database-errors.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { auditResult } from './audit-trail.ts'
import { admitKey } from './idempotency-limits.ts'
import type { Invocation } from './invocation.ts'

/**
 * Step: a POST with an Idempotency-Key is executed once; a repeat gets the first response. The changes of an operation commit
 * together with its response, or with the records to rebuild it from, so that neither is lost if the process is killed or
 * fails after the commit. A claim has a lease, so that the key of a lost process becomes available.
 */

/** Maximum time a request waits for an unavailable database to store its claim. */
const CLAIM_PATIENCE_MS = 2000

/** Maximum time a response waits for the last write of its claim, which continues afterwards. */
const SETTLE_WAIT_MS = 3000

/** Maximum time for which the last write of a claim is retried, while its lease is renewed. */
const SETTLE_PATIENCE_MS = 900_000

export const REPLAYED = { 'Idempotency-Replayed': 'true' }

const IDEMPOTENCY_KEY = /^[\x21-\x7e]{1,255}$/

/** Two of three consecutive renewals may fail before a lease expires. */
const RENEW_INTERVAL_MS = (LEASE_SECONDS * 1000) / 4

/**
 * The claims of requests active in this process. One statement renews all leases; a request that ends between two renewals
 * needs none.
 */
const activeClaims = processSingleton(
  services => {
    const active = new Map<string, IdempotencyClaim>()
    let timer: NodeJS.Timeout | null = null
    const { log } = services
    const renewAll = exclusiveLoop('idempotency claims', { periodMs: RENEW_INTERVAL_MS, log }, async () => {
      if (active.size === 0) return
      try {
        await renewClaims(services.pool, [...active.values()])
      } catch (error) {
        log.warn({ err: error }, 'idempotency claim renewal failed')
      }
    })

    return {
      add(claim: IdempotencyClaim): void {
        active.set(claim.claim, claim)
        // Detached from the tenant and connection of the request that starts the timer.
        timer ??= withoutTenant(() => onSeparateConnection(() => setInterval(renewAll, RENEW_INTERVAL_MS))).unref()
      },
      remove({ claim }: IdempotencyClaim): void {
        active.delete(claim)
      },
      close(): void {
        if (timer) clearInterval(timer)
      },
    }
  },
  claims => claims.close(),
)

/** Returns the identity of a call with an Idempotency-Key; null if it has no valid key. */
function keyedRequestOf({ caller, call, project, received, body }: Invocation) {
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

/** Claims the key. Returns the stored response for a repeat, null for a first call. Raises if the key is refused. */
export async function claimKey(inv: Invocation): Promise<StoredResponse | null> {
  if (inv.call.idempotencyKey === undefined || !inv.caller) return null
  const request = keyedRequestOf(inv)
  if (!request)
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'Idempotency-Key',
      message: 'must be 1 to 255 visible ASCII characters',
    })
  await admitKey(inv, request)
  const claim = { ...request, claim: randomUUID() }
  try {
    const { kept, made } = await retryWhileUnavailable(() => claimIdempotencyKey(inv.db, inv.services, claim), {
      withinMs: inv.call.tx ? 0 : CLAIM_PATIENCE_MS,
    })
    if (kept) return kept
    inv.idempotency = { ...claim, made }
    // In the caller's transaction, the claim is invisible to others until it is settled.
    if (!inv.call.tx) activeClaims(inv.services).add(claim)
    return null
  } catch (error) {
    // The claim may have been committed nevertheless.
    if (isTransient(error) && !inv.call.tx)
      await settleClaim(inv, claim, () => releaseIdempotencyKey(inv.db, claim), { waitMs: 0 })
    throw error
  }
}

/** Returns the stored response of a POST whose resource is not found: the first call may have deleted it. */
export async function responseForDeleted(inv: Invocation, error: unknown): Promise<StoredResponse | null> {
  const { method, shape } = inv.operation
  if (method !== 'post' || shape !== 'item' || !(error instanceof AppError) || error.status !== 404) return null
  // No response is stored for such a body, and a deeply nested one cannot be serialized.
  if (storabilityProblem(inv.call.body)) return null
  const request = keyedRequestOf(inv)
  return request && (await findStoredResponse(inv.db, inv.services.secrets, request))
}

export async function replayResponse(inv: Invocation, stored: StoredResponse): Promise<OperationResult> {
  const replayed = result(stored.status, stored.body, { ...stored.headers, ...REPLAYED })
  inv.audit.project_id ??= stored.project_id
  inv.audit.detail.idempotency_replayed = true
  await auditResult(inv, replayed)
  return replayed
}

/** Stops renewing the lease of the call's claim, after its last write. */
export const endLease = ({ services, idempotency }: Invocation): void => {
  if (idempotency) activeClaims(services).remove(idempotency)
}

/**
 * Makes the last write of a claim. While the database is unavailable, it is retried after the response is sent, so that a
 * repeat does not execute the operation again because the response was not stored. The response waits for the first try,
 * for at most `waitMs`.
 */
async function settleClaim(
  { call, services }: Invocation,
  claim: IdempotencyClaim,
  write: () => Promise<unknown>,
  { waitMs = SETTLE_WAIT_MS } = {},
): Promise<void> {
  const first = write()
  const settled = first
    .catch(error => {
      if (call.tx || !isTransient(error)) throw error
      return retryWhileUnavailable(write, { withinMs: SETTLE_PATIENCE_MS })
    })
    .catch(error => services.log.error({ err: error }, 'idempotency claim settlement failed'))
    .finally(() => activeClaims(services).remove(claim))
  if (call.tx) await settled
  else if (waitMs > 0)
    await settledWithin(
      waitMs,
      first.catch(() => {}),
    )
}

/** Stores the response of an operation with its own transactions. */
export async function storeOperationResult(inv: Invocation, response: OperationResult): Promise<void> {
  const { idempotency, operation, services, db } = inv
  if (!idempotency) return
  if (inv.kept) return endLease(inv)
  // A stream is not stored: a repeat streams the recorded work again. Neither is the response for a disconnected client,
  // whose repeat waits for the work.
  const isUndelivered = inv.noted && inv.call.request.closed.aborted
  await settleClaim(inv, idempotency, () =>
    response.stream || isUndelivered
      ? releaseIdempotencyKey(db, idempotency)
      : storeResponse(db, services, idempotency, response.kept ?? response, operation.secretAnswer),
  )
}

/** Whether an error is the outcome of the operation, not a failure to respond. */
const isOutcome = (error: unknown): error is AppError =>
  error instanceof AppError && error.code !== 'SERVICE_NOT_READY' && !isDatabaseError(error)

/**
 * Stores a refusal like a response. A failure deletes the claim; an error that is not an outcome releases it, so that a
 * repeat is answered from the recorded effects.
 */
export async function storeRefusal(inv: Invocation, error: unknown): Promise<void> {
  const { services, db } = inv
  const claim = inv.idempotency as IdempotencyClaim
  const write = () => {
    if (!isOutcome(error)) return releaseIdempotencyKey(db, claim)
    const { status, headers } = error
    if (status >= 500) return deleteIdempotencyKey(db, claim)
    const body = errorBody(error, services.config.DOCS_BASE_URL)
    return storeResponse(db, services, claim, { status, body, headers }, false)
  }
  await settleClaim(inv, claim, write, isTransient(error) ? { waitMs: 0 } : {})
}
