import { z } from 'zod'
import { type Fragment, jsonb, type Queryable, sql, statement } from '../db/sql.ts'
import type { Services } from '../process/services.ts'
import { sealedColumn } from '../secrets/sealed.ts'
import type { SecretBox } from '../secrets/secretbox.ts'
import { type AppError, errorBody, raise } from './errors.ts'

export type IdempotencyKey = { credential_id: string; project_id: string | null; path: string; key: string }

/** A request's right to give the answer of a key; `claim` tells it from another request's. */
export type IdempotencyClaim = IdempotencyKey & { claim: string }

/** The answer that a first request got. */
export type Kept = { status: number; body: unknown; headers: Record<string, string>; project_id: string | null }

const claiming = sql.type(z.strictObject({ claim: z.string() }))

const keeping = sql.type(
  z.strictObject({
    project_id: z.string().nullable(),
    request_hash: z.string(),
    status: z.int().nullable(),
    body: z.unknown(),
    sealed_body: z.string().nullable(),
    headers: z.record(z.string(), z.string()).nullable(),
  }),
)

/** A first request that neither ended nor gave up within this time, or twice the longest wait, was lost with its process. */
export const LOST_AFTER_SECONDS = 900

/**
 * Claims an Idempotency-Key for a request: null for the first one, the stored answer for a repeat. A claim is made again
 * without effect. Raises IDEMPOTENCY_KEY_REUSED for another body and IDEMPOTENCY_IN_PROGRESS while the first request runs.
 */
export async function claimIdempotency(
  db: Queryable,
  { secrets, config }: Pick<Services, 'secrets' | 'config'>,
  request: IdempotencyClaim & { request: string },
): Promise<Kept | null> {
  const { credential_id, project_id, path, key, claim } = request
  const lostAfter = Math.max(LOST_AFTER_SECONDS, 2 * config.SYNC_WAIT_SECONDS)
  // Keyed: a request may hold a secret value, which a plain hash would let anyone with the table guess at.
  const hash = secrets.fingerprint(request.request)
  const claimed = await db.maybeOne(claiming`
    insert into idempotency_keys (credential_id, path, key, project_id, request_hash, claim)
    values (${credential_id}, ${path}, ${key}, ${project_id}, ${hash}, ${claim})
    on conflict (credential_id, path, key) do update
      set request_hash = excluded.request_hash, project_id = excluded.project_id, status = null, body = null,
        sealed_body = null, headers = null, claim = excluded.claim, created_at = now()
      where idempotency_keys.created_at < now() - interval '24 hours'
        or (idempotency_keys.status is null
          and (idempotency_keys.claim = excluded.claim
            or idempotency_keys.created_at < now() - make_interval(secs => ${lostAfter})))
    returning claim`)
  return claimed ? null : ((await keptAnswer(db, secrets, request)) ?? raise('IDEMPOTENCY_IN_PROGRESS'))
}

/**
 * The answer kept for a request; null when there is none. Raises IDEMPOTENCY_KEY_REUSED for another body and
 * IDEMPOTENCY_IN_PROGRESS while the first request runs.
 */
export async function keptAnswer(
  db: Queryable,
  secrets: SecretBox,
  request: Omit<IdempotencyKey, 'project_id'> & { request: string },
): Promise<Kept | null> {
  const { credential_id, path, key } = request
  const kept = await db.maybeOne(keeping`
    select project_id, request_hash, status, body, sealed_body, headers from idempotency_keys
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and created_at >= now() - interval '24 hours'`)
  if (!kept) return null
  if (!secrets.recognises(kept.request_hash, request.request)) return raise('IDEMPOTENCY_KEY_REUSED')
  if (kept.status === null) return raise('IDEMPOTENCY_IN_PROGRESS')
  let body = kept.body ?? undefined
  if (kept.sealed_body !== null) {
    const opened = secrets.open(kept.sealed_body, sealFor({ ...request, project_id: kept.project_id }))
    if (!opened.ok)
      return raise('SECRET_NOT_DECRYPTABLE', {
        message: 'The answer kept under the Idempotency-Key cannot be decrypted',
      })
    body = JSON.parse(opened.value)
  }
  return { status: kept.status, body, headers: kept.headers ?? {}, project_id: kept.project_id }
}

const sealFor = (claim: IdempotencyKey) => ({
  kind: 'idempotency',
  id: `${claim.credential_id}:${claim.path}:${claim.key}`,
  project_id: claim.project_id ?? '*',
})

/** Answers that show a secret. */
export const keptAnswers = sealedColumn({
  table: 'idempotency_keys',
  column: 'sealed_body',
  kind: 'idempotency',
  id: sql.fragment`(credential_id || ':' || path || ':' || key)`,
})

const isClaimed = ({ credential_id, path, key, claim }: IdempotencyClaim): Fragment => sql.fragment`
  credential_id = ${credential_id} and path = ${path} and key = ${key} and claim = ${claim} and status is null`

/** A condition in SQL over what an answer shows: where it does not hold, repeats get the refusal in its place. */
export type KeptWhile = { holds: Fragment; refusal: () => AppError }

/**
 * Keeps the answer for repeats; an answer that holds a secret is sealed. Nothing when the claim was lost. A condition is
 * asked in the statement that keeps it.
 */
export async function keepAnswer(
  db: Queryable,
  { secrets, config }: Pick<Services, 'secrets' | 'config'>,
  claim: IdempotencyClaim,
  given: { status: number; body?: unknown; headers?: Record<string, string>; keptWhile?: KeptWhile },
  secret: boolean,
): Promise<void> {
  if (given.status >= 500) return releaseIdempotency(db, claim)
  const { status, headers, keptWhile } = given
  const sealed = secret && status < 300 ? secrets.seal(JSON.stringify(given.body ?? null), sealFor(claim)) : null
  const body = sealed ? jsonb(null) : jsonb(given.body)
  const answer = sql.fragment`select ${status}::int, ${body}, ${jsonb(headers)}`
  const kept = keptWhile
    ? sql.fragment`
      ${answer}, 1 where ${keptWhile.holds}
      union all select ${refused(config, keptWhile.refusal())}, 2 order by 4 limit 1`
    : sql.fragment`${answer}, 1`
  await db.query(statement`
    update idempotency_keys set status = k.its_status, body = k.its_body, sealed_body = ${sealed}, headers = k.its_headers
    from (${kept}) k (its_status, its_body, its_headers, choice) where ${isClaimed(claim)}`)
}

/** A refusal as it is kept: its status, body and headers. */
const refused = ({ DOCS_BASE_URL }: Services['config'], refusal: AppError): Fragment =>
  sql.fragment`${refusal.status}::int, ${jsonb(errorBody(refusal, DOCS_BASE_URL))}, null::jsonb`

/**
 * Puts a refusal in the place of the kept answers of a project that name one of these ids, so that a repeat neither shows
 * them nor does the work again. Returns how many there were. By idempotency_keys_named.
 */
export async function eraseAnswers(
  db: Queryable,
  { config }: Pick<Services, 'config'>,
  projectId: string,
  ids: readonly string[],
  refusal: AppError,
): Promise<number> {
  const { rowCount } = await db.query(statement`
    update idempotency_keys set (status, body, headers) = (select ${refused(config, refusal)})
    where body is not null and ${NAMED} ?| ${sql.array([...ids], 'text')} and project_id = ${projectId}
      and body -> 'error' ->> 'code' is distinct from ${refusal.code}`)
  return rowCount
}

/** The ids that an answer names, as the index has them. */
const NAMED = sql.fragment`jsonb_path_query_array(body,
  'strict $.** ? (@.type() == "string" && @ like_regex "^[a-z_]+_[0-9a-z]{26}$")')`

/** Gives a claim up: the next request with the key is a first one. */
export async function releaseIdempotency(db: Queryable, claim: IdempotencyClaim): Promise<void> {
  await db.query(statement`delete from idempotency_keys where ${isClaimed(claim)}`)
}
