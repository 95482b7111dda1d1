import { LRUCache } from 'lru-cache'
import { deleteOldestResponses, type IdempotencyScope, isKnownKey, listOverShare } from '../api/idempotency.ts'
import { AppError } from '../base/errors.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import type { Invocation } from './invocation.ts'

/**
 * Bounds the bytes that responses stored for an Idempotency-Key take, per credential and per project. A process measures
 * a scope only after it has claimed many keys in it, alongside the requests, so that no request has a further statement.
 * Above a limit, responses older than an hour are deleted, the oldest first; if that is not enough, new keys are refused,
 * while repeats of stored requests still get their responses: no caller that repeats within the hour executes twice. Both
 * concern only the credentials that take more than their share of the project.
 */

/** Claims of a process in a scope between two measurements. */
const CLAIMS_PER_MEASUREMENT = 100
/** Minimum time between two measurements of a scope, and as a multiple of the time that a measurement takes. */
const MIN_INTERVAL_MS = 1000
const INTERVAL_FACTOR = 20
const MAX_SCOPES = 10_000
const RETRY_AFTER_SECONDS = 60

type ScopeState = {
  claims: number
  nextAt: number
  measuring: boolean
  /** Credentials whose new keys are refused. */
  refused: ReadonlySet<string>
}

const NONE: ReadonlySet<string> = new Set()

const scopeStates = processSingleton(() => new LRUCache<string, ScopeState>({ max: MAX_SCOPES }))

/** Counts a claim. @throws IDEMPOTENCY_LIMIT_EXCEEDED for a new key above a limit */
export async function admitKey(
  { services, db, call }: Invocation,
  key: { credential_id: string; project_id: string | null; path: string; key: string },
): Promise<void> {
  const { IDEMPOTENCY_CREDENTIAL_MAX_BYTES, IDEMPOTENCY_PROJECT_MAX_BYTES } = services.config
  const { credential_id, project_id } = key
  const scopes: [IdempotencyScope, number][] = [[{ credential_id }, IDEMPOTENCY_CREDENTIAL_MAX_BYTES]]
  if (project_id !== null) scopes.push([{ project_id }, IDEMPOTENCY_PROJECT_MAX_BYTES])
  for (const [scope, limit] of scopes) {
    if (!countClaim(services, scope, limit).has(credential_id)) continue
    if (call.tx || (await isKnownKey(db, key))) return
    throw new AppError('IDEMPOTENCY_LIMIT_EXCEEDED', {
      meta: { ...scope, limit },
      headers: { 'Retry-After': String(RETRY_AFTER_SECONDS) },
    })
  }
}

/** Counts a claim in a scope, starts a measurement if one is due, and returns the credentials that the last one refused. */
function countClaim(services: Services, scope: IdempotencyScope, limit: number): ReadonlySet<string> {
  const states = scopeStates(services)
  const id = Object.values(scope)[0]
  let state = states.get(id)
  if (!state) {
    state = { claims: 0, nextAt: 0, measuring: false, refused: NONE }
    states.set(id, state)
  }
  state.claims++
  const isDue = state.refused.size > 0 || state.claims >= CLAIMS_PER_MEASUREMENT
  if (isDue && !state.measuring && performance.now() >= state.nextAt) {
    const due = state
    due.measuring = true
    void withoutTenant(() => onSeparateConnection(() => measure(services, scope, limit, due)))
  }
  return state.refused
}

async function measure(services: Services, scope: IdempotencyScope, limit: number, state: ScopeState): Promise<void> {
  const { pool, log } = services
  const started = performance.now()
  try {
    let over = await listOverShare(pool, scope, limit)
    let excess = over[0]?.excess ?? 0
    const ids = over.map(({ credential_id }) => credential_id)
    for (let freed = 1; excess > 0 && freed > 0; excess -= freed) freed = await deleteOldestResponses(pool, scope, ids)
    if (ids.length > 0) over = await listOverShare(pool, scope, limit)
    state.refused = new Set(over.map(({ credential_id }) => credential_id))
  } catch (error) {
    log.warn({ err: error, ...scope }, 'measurement of idempotency keys failed')
  }
  const ended = performance.now()
  state.claims = 0
  state.nextAt = ended + Math.max(MIN_INTERVAL_MS, (ended - started) * INTERVAL_FACTOR)
  state.measuring = false
}
