import { z } from 'zod'
import { AppError, errorBody, raise } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import type { Services } from '../base/services.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { sealedColumn } from '../db/sealed.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { SecretBox } from '../secrets/secretbox.ts'

export type IdempotencyKey = { credential_id: string; project_id: string | null; path: string; key: string }

/** The exclusive ownership of a key by one request, identified by `claim`. */
export type IdempotencyClaim = IdempotencyKey & { claim: string }

/** The stored response of a first request. */
export type StoredResponse = {
  status: number
  body: unknown
  headers: Record<string, string>
  project_id: string | null
}

/**
 * The ids of records that an operation committed before its response, from which `again` rebuilds the response. Contains no
 * content, because an erasure does not cover it.
 */
export type Made = Record<string, unknown>

const claimRow = sql.type(z.strictObject({ claim: z.string() }))

const madeRow = sql.type(z.strictObject({ made: z.record(z.string(), z.unknown()) }))

const keyRow = sql.type(
  z.strictObject({
    project_id: z.string().nullable(),
    request_hash: z.string(),
    status: z.int().nullable(),
    body: z.unknown(),
    sealed_body: z.string().nullable(),
    headers: z.record(z.string(), z.string()).nullable(),
    made: z.boolean(),
    lease_seconds: z.int(),
  }),
)

/** Time until a claim expires unless the process of its request renews it. */
export const LEASE_SECONDS = 20

const lease = sql.fragment`now() + make_interval(secs => ${LEASE_SECONDS})`

/** Limit of Retry-After: the first request may end long before its lease. */
const MAX_RETRY_AFTER_SECONDS = 5

/** Returns IDEMPOTENCY_IN_PROGRESS with a Retry-After of at most the remaining lease. */
const inProgress = (seconds = 1): AppError =>
  new AppError('IDEMPOTENCY_IN_PROGRESS', {
    headers: { 'Retry-After': String(Math.min(Math.max(seconds, 1), MAX_RETRY_AFTER_SECONDS)) },
  })

type KeyedRequest = Omit<IdempotencyKey, 'project_id'> & { request: string }

/**
 * Claims an Idempotency-Key for a request. Returns the stored response for a repeat, or the records made by a lost first
 * request; neither for a first request. Idempotent for the same claim.
 * @throws IDEMPOTENCY_KEY_REUSED for a different body, IDEMPOTENCY_IN_PROGRESS while the first request runs
 */
export async function claimIdempotencyKey(
  db: Queryable,
  { secrets }: Pick<Services, 'secrets'>,
  request: IdempotencyClaim & { request: string },
): Promise<{ kept: StoredResponse | null; made: Made | null }> {
  const { credential_id, project_id, path, key, claim } = request
  // Keyed hash: a request may contain a secret, which a plain hash would expose to guessing.
  const hash = secrets.fingerprint(request.request)
  const claimed = await db.maybeOne(claimRow`
    insert into idempotency_keys (credential_id, path, key, project_id, request_hash, claim, leased_until)
    values (${credential_id}, ${path}, ${key}, ${project_id}, ${hash}, ${claim}, ${lease})
    on conflict (credential_id, path, key) do update
      set request_hash = excluded.request_hash, project_id = excluded.project_id, status = null, body = null,
        sealed_body = null, headers = null, made = null, claim = excluded.claim, leased_until = excluded.leased_until,
        created_at = now()
      where idempotency_keys.created_at < now() - interval '24 hours'
        or (idempotency_keys.status is null and idempotency_keys.made is null
          and (idempotency_keys.claim = excluded.claim or idempotency_keys.leased_until < now()))
    returning claim`)
  if (claimed) return { kept: null, made: null }
  const found = await findKey(db, secrets, request)
  if (!found) throw inProgress()
  if (found.status !== null) return { kept: openResponse(secrets, request, found), made: null }
  if (!found.made) throw inProgress(found.lease_seconds)
  const reclaimed = await db.maybeOne(madeRow`
    update idempotency_keys set claim = ${claim}, leased_until = ${lease}
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and status is null and made is not null
      and (claim = ${claim} or leased_until < now())
    returning made`)
  if (!reclaimed) throw inProgress(found.lease_seconds)
  return { kept: null, made: reclaimed.made }
}

/**
 * Returns the stored response of a request; null if there is none and the first request was lost.
 * @throws IDEMPOTENCY_KEY_REUSED for a different body, IDEMPOTENCY_IN_PROGRESS while the first request runs
 */
export async function findStoredResponse(
  db: Queryable,
  secrets: SecretBox,
  request: KeyedRequest,
): Promise<StoredResponse | null> {
  const found = await findKey(db, secrets, request)
  if (!found) return null
  if (found.status !== null) return openResponse(secrets, request, found)
  if (found.lease_seconds > 0) throw inProgress(found.lease_seconds)
  return null
}

type KeyRow = Exclude<Awaited<ReturnType<typeof findKey>>, null>

/** Returns the row of a key, or null. Raises IDEMPOTENCY_KEY_REUSED for a different body. */
async function findKey(db: Queryable, secrets: SecretBox, { credential_id, path, key, request }: KeyedRequest) {
  const found = await db.maybeOne(keyRow`
    select project_id, request_hash, status, body, sealed_body, headers, made is not null as made,
      greatest(0, ceil(extract(epoch from leased_until - now())))::int as lease_seconds
    from idempotency_keys
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and created_at >= now() - interval '24 hours'`)
  if (found && !secrets.recognises(found.request_hash, request)) raise('IDEMPOTENCY_KEY_REUSED')
  return found
}

function openResponse(
  secrets: SecretBox,
  request: KeyedRequest,
  { project_id, status, sealed_body, ...row }: KeyRow,
): StoredResponse {
  let body = row.body ?? undefined
  if (sealed_body !== null) {
    const opened = secrets.open(sealed_body, sealFor({ ...request, project_id }))
    if (!opened.ok)
      return raise('SECRET_NOT_DECRYPTABLE', {
        message: 'The stored response of the Idempotency-Key cannot be decrypted',
      })
    body = parseExactJson(opened.value)
  }
  return { status: status as number, body, headers: row.headers ?? {}, project_id }
}

/**
 * Ends the lease of an unfinished claim, whose process was lost: the next request claims the key. A request that still runs
 * does not commit, as after the end of its lease.
 */
export const endIdempotencyLease = (
  db: Queryable,
  { credential_id, path, key }: Omit<IdempotencyKey, 'project_id'>,
): Promise<unknown> =>
  db.query(voidStatement`
    update idempotency_keys set leased_until = now() - interval '1 second'
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and status is null and leased_until > now()`)

/** Renews the leases of claims. Skips locked rows: their transaction is about to settle them. */
export async function renewClaims(db: Queryable, claims: readonly IdempotencyClaim[]): Promise<void> {
  const rows = claims.map(({ credential_id, path, key, claim }) => [credential_id, path, key, claim])
  await db.query(voidStatement`
    with live as (
      select k.credential_id, k.path, k.key
      from ${sql.unnest(rows, ['text', 'text', 'text', 'text'])} as c (credential_id, path, key, claim)
      join idempotency_keys k using (credential_id, path, key)
      where k.claim = c.claim and k.status is null
      for update of k skip locked)
    update idempotency_keys k set leased_until = ${lease} from live
    where k.credential_id = live.credential_id and k.path = live.path and k.key = live.key`)
}

/** SQLSTATE of idempotency_claim_lost(). */
const CLAIM_LOST = 'P0409'

/** Returns the refusal for a transaction that found its key claimed by another request; null for any other error. */
export const claimLostRefusal = (error: unknown): AppError | null =>
  sqlStateOf(error) === CLAIM_LOST ? inProgress() : null

/**
 * Returns a statement part that stores the response of a change, or the records to rebuild it from, for repeats. It fails
 * the change if another request has claimed the key after the lease of this one expired: that request makes the change.
 */
export const storeWithChange =
  ({ credential_id, path, key, claim }: IdempotencyClaim, effect: { status: number; body: unknown } | { made: Made }) =>
  (guard: Fragment): Fragment => {
    const assignments =
      'made' in effect
        ? sql.fragment`made = ${jsonb(effect.made)}`
        : sql.fragment`status = ${effect.status}, body = ${jsonb(effect.body)}`
    return sql.fragment`
      update idempotency_keys
      set ${assignments}, claim = case when claim = ${claim} and status is null then claim else idempotency_claim_lost() end
      where credential_id = ${credential_id} and path = ${path} and key = ${key} and ${guard}`
  }

/** Records a request's pending effects outside the database. Raises IDEMPOTENCY_IN_PROGRESS if its claim is lost. */
export async function recordMade(db: Queryable, claim: IdempotencyClaim, made: Made): Promise<void> {
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set made = ${jsonb(made)} where ${isClaimed(claim)}`)
  if (rowCount === 0) throw inProgress()
}

const sealFor = (claim: IdempotencyKey) => ({
  kind: 'idempotency',
  id: `${claim.credential_id}:${claim.path}:${claim.key}`,
  project_id: claim.project_id ?? '*',
})

/** Stored responses that contain a secret. */
export const sealedResponses = sealedColumn({
  table: 'idempotency_keys',
  column: 'sealed_body',
  kind: 'idempotency',
  id: sql.fragment`(credential_id || ':' || path || ':' || key)`,
})

const isClaimed = ({ credential_id, path, key, claim }: IdempotencyClaim): Fragment => sql.fragment`
  credential_id = ${credential_id} and path = ${path} and key = ${key} and claim = ${claim} and status is null`

/** An SQL condition on the content of a response: if it is false, the refusal is stored instead. */
export type ReplayCondition = { holds: Fragment; refusal: () => AppError }

/**
 * Stores the response for repeats, sealed if it contains a secret, and returns whether the claim was still valid. A replay
 * condition is evaluated in the same statement.
 */
export async function storeResponse(
  db: Queryable,
  { secrets, config }: Pick<Services, 'secrets' | 'config'>,
  claim: IdempotencyClaim,
  response: { status: number; body?: unknown; headers?: Record<string, string>; keptWhile?: ReplayCondition },
  secret: boolean,
): Promise<boolean> {
  const { status, headers, keptWhile } = response
  const sealed = secret && status < 300 ? secrets.seal(JSON.stringify(response.body ?? null), sealFor(claim)) : null
  const body = sealed ? jsonb(null) : jsonb(response.body)
  const columns = sql.fragment`select ${status}::int, ${body}, ${jsonb(headers)}`
  const stored = keptWhile
    ? sql.fragment`
      ${columns}, 1 where ${keptWhile.holds}
      union all select ${refusalColumns(config, keptWhile.refusal())}, 2 order by 4 limit 1`
    : sql.fragment`${columns}, 1`
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set status = k.its_status, body = k.its_body, sealed_body = ${sealed}, headers = k.its_headers
    from (${stored}) k (its_status, its_body, its_headers, choice) where ${isClaimed(claim)}`)
  return rowCount > 0
}

/** Stores the response in the transaction of the change. Raises IDEMPOTENCY_IN_PROGRESS if the claim is lost. */
export async function storeInTransaction(...args: Parameters<typeof storeResponse>): Promise<void> {
  if (!(await storeResponse(...args))) throw inProgress()
}

/** Returns status, body and headers of a refusal in stored form. */
const refusalColumns = ({ DOCS_BASE_URL }: Services['config'], refusal: AppError): Fragment =>
  sql.fragment`${refusal.status}::int, ${jsonb(errorBody(refusal, DOCS_BASE_URL))}, null::jsonb`

/**
 * Replaces the stored responses of a project that contain one of these ids with a refusal, so that a repeat neither returns
 * the content nor executes again. Returns the number of responses replaced. Uses the index idempotency_keys_named.
 */
export async function eraseStoredResponses(
  db: Queryable,
  { config }: Pick<Services, 'config'>,
  projectId: string,
  ids: readonly string[],
  refusal: AppError,
): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set (status, body, headers) = (select ${refusalColumns(config, refusal)})
    where body is not null and ${NAMED} ?| ${sql.array([...ids], 'text')} and project_id = ${projectId}
      and body -> 'error' ->> 'code' is distinct from ${refusal.code}`)
  return rowCount
}

/** The ids in a response body, by the expression of the index. */
const NAMED = sql.fragment`jsonb_path_query_array(body,
  'strict $.** ? (@.type() == "string" && @ like_regex "^[a-z_]+_[0-9a-z]{26}$")')`

/** A credential or a project whose stored responses are bounded. */
export type IdempotencyScope = { credential_id: string } | { project_id: string }

const inScope = (scope: IdempotencyScope): Fragment =>
  'credential_id' in scope
    ? sql.fragment`credential_id = ${scope.credential_id}`
    : sql.fragment`project_id = ${scope.project_id}`

/** Bytes of a row. The size of a value stored out of line is read without fetching it. */
export const storedBytes = sql.fragment`(200 + octet_length(path) + octet_length(key)
  + coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(sealed_body), 0) + coalesce(pg_column_size(headers), 0))`

const bytesRow = sql.type(z.strictObject({ bytes: z.number() }))

const excessRow = sql.type(z.strictObject({ credential_id: z.string(), excess: z.number() }))

/** Most credentials whose new keys are refused: the largest. */
const MAX_REFUSED = 1000

/**
 * Lists the credentials whose stored responses exceed their share of the limit of a scope, with the bytes by which the scope
 * exceeds it; none below the limit. What credentials with few bytes leave of their equal shares goes to the others: a
 * credential is never refused for the bytes of others as long as it takes less than they do. Indexes idempotency_keys_pkey
 * and idempotency_keys_project.
 */
export const listOverShare = (db: Queryable, scope: IdempotencyScope, limit: number) =>
  db.any(excessRow`
    select credential_id, total - ${limit}::int8 as excess from (
      select credential_id, bytes, sum(bytes) over (order by bytes, credential_id) - bytes as smaller,
        count(*) over (order by bytes desc, credential_id desc) as others, (sum(bytes) over ())::int8 as total
      from (
        select credential_id, sum(${storedBytes}) as bytes from idempotency_keys where ${inScope(scope)} group by 1) c
    ) s
    where smaller + bytes * others > ${limit}::int8 order by bytes desc limit ${MAX_REFUSED}`)

/** Time for which a response is stored in any case. */
const KEPT_SECONDS = 3600
const DELETED_ROWS = 2000

/** Deletes the oldest responses of credentials in a scope that are older than KEPT_SECONDS, and returns their bytes. */
export const deleteOldestResponses = (
  db: Queryable,
  scope: IdempotencyScope,
  credentialIds: readonly string[],
): Promise<number> =>
  db.oneFirst(bytesRow`
    with gone as (
      delete from idempotency_keys where ctid = any (array(
        select ctid from idempotency_keys
        where ${inScope(scope)} and credential_id = any(${sql.array([...credentialIds], 'text')}) and status is not null
          and created_at < now() - make_interval(secs => ${KEPT_SECONDS})
        order by created_at limit ${DELETED_ROWS}))
      returning ${storedBytes} as bytes)
    select coalesce(sum(bytes), 0)::int8 as bytes from gone`)

/** Whether a key has a row. */
export const isKnownKey = async (db: Queryable, { credential_id, path, key }: Omit<IdempotencyKey, 'project_id'>) =>
  (await db.maybeOneFirst(bytesRow`
    select 1::int8 as bytes from idempotency_keys
    where credential_id = ${credential_id} and path = ${path} and key = ${key}`)) !== null

/** Deletes a claim: the next request with the key is a first request. */
export async function deleteIdempotencyKey(db: Queryable, claim: IdempotencyClaim): Promise<void> {
  await db.query(voidStatement`delete from idempotency_keys where ${isClaimed(claim)}`)
}

/**
 * Expires the lease of a claim: the next request with the key rebuilds the response from the recorded effects, or is a first
 * request if there are none.
 */
export async function releaseIdempotencyKey(db: Queryable, claim: IdempotencyClaim): Promise<void> {
  await db.query(voidStatement`
    with forgotten as (delete from idempotency_keys where ${isClaimed(claim)} and made is null)
    update idempotency_keys set leased_until = now() - interval '1 second' where ${isClaimed(claim)} and made is not null`)
}
