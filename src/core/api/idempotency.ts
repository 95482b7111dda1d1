import { z } from 'zod'
import { sqlStateOf } from '../db/database-errors.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { Services } from '../process/services.ts'
import { sealedColumn } from '../secrets/sealed.ts'
import type { SecretBox } from '../secrets/secretbox.ts'
import { AppError, errorBody, raise } from './errors.ts'

export type IdempotencyKey = { credential_id: string; project_id: string | null; path: string; key: string }

/** A request's right to give the answer of a key; `claim` tells it from another request's. */
export type IdempotencyClaim = IdempotencyKey & { claim: string }

/** The answer that a first request got. */
export type StoredResponse = {
  status: number
  body: unknown
  headers: Record<string, string>
  project_id: string | null
}

/**
 * What an operation has committed ahead of its answer: the ids that the answer is made of, as `again` reads them. No content:
 * an erasure does not look here.
 */
export type Made = Record<string, unknown>

const claiming = sql.type(z.strictObject({ claim: z.string() }))

const taking = sql.type(z.strictObject({ made: z.record(z.string(), z.unknown()) }))

const keeping = sql.type(
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

/** How long a claim holds unless the process of its request renews it. */
export const LEASE_SECONDS = 20

const lease = sql.fragment`now() + make_interval(secs => ${LEASE_SECONDS})`

/** Longest time that a repeat is asked to wait for: the first request may end long before its lease. */
const LONGEST_RETRY_SECONDS = 5

/** IDEMPOTENCY_IN_PROGRESS: when to repeat, at the latest when the claim is free unless its process renews it. */
const inProgress = (seconds = 1): AppError =>
  new AppError('IDEMPOTENCY_IN_PROGRESS', {
    headers: { 'Retry-After': String(Math.min(Math.max(seconds, 1), LONGEST_RETRY_SECONDS)) },
  })

type Asked = Omit<IdempotencyKey, 'project_id'> & { request: string }

/**
 * Claims an Idempotency-Key for a request: the stored answer for a repeat, else what a first request that was lost had made;
 * neither for a first request. A claim is made again without effect. Raises IDEMPOTENCY_KEY_REUSED for another body and
 * IDEMPOTENCY_IN_PROGRESS while the first request runs.
 */
export async function claimIdempotencyKey(
  db: Queryable,
  { secrets }: Pick<Services, 'secrets'>,
  request: IdempotencyClaim & { request: string },
): Promise<{ kept: StoredResponse | null; made: Made | null }> {
  const { credential_id, project_id, path, key, claim } = request
  // Keyed: a request may hold a secret value, which a plain hash would let anyone with the table guess at.
  const hash = secrets.fingerprint(request.request)
  const claimed = await db.maybeOne(claiming`
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
  if (found.status !== null) return { kept: openKept(secrets, request, found), made: null }
  if (!found.made) throw inProgress(found.lease_seconds)
  const taken = await db.maybeOne(taking`
    update idempotency_keys set claim = ${claim}, leased_until = ${lease}
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and status is null and made is not null
      and (claim = ${claim} or leased_until < now())
    returning made`)
  if (!taken) throw inProgress(found.lease_seconds)
  return { kept: null, made: taken.made }
}

/**
 * The answer kept for a request; null when there is none and the first request is lost. Raises IDEMPOTENCY_KEY_REUSED for
 * another body and IDEMPOTENCY_IN_PROGRESS while the first request runs.
 */
export async function findStoredResponse(
  db: Queryable,
  secrets: SecretBox,
  request: Asked,
): Promise<StoredResponse | null> {
  const found = await findKey(db, secrets, request)
  if (!found) return null
  if (found.status !== null) return openKept(secrets, request, found)
  if (found.lease_seconds > 0) throw inProgress(found.lease_seconds)
  return null
}

type Found = Exclude<Awaited<ReturnType<typeof findKey>>, null>

/** The row of a key for a request. Raises IDEMPOTENCY_KEY_REUSED for another body. */
async function findKey(db: Queryable, secrets: SecretBox, { credential_id, path, key, request }: Asked) {
  const found = await db.maybeOne(keeping`
    select project_id, request_hash, status, body, sealed_body, headers, made is not null as made,
      greatest(0, ceil(extract(epoch from leased_until - now())))::int as lease_seconds
    from idempotency_keys
    where credential_id = ${credential_id} and path = ${path} and key = ${key} and created_at >= now() - interval '24 hours'`)
  if (found && !secrets.recognises(found.request_hash, request)) raise('IDEMPOTENCY_KEY_REUSED')
  return found
}

function openKept(
  secrets: SecretBox,
  request: Asked,
  { project_id, status, sealed_body, ...kept }: Found,
): StoredResponse {
  let body = kept.body ?? undefined
  if (sealed_body !== null) {
    const opened = secrets.open(sealed_body, sealFor({ ...request, project_id }))
    if (!opened.ok)
      return raise('SECRET_NOT_DECRYPTABLE', {
        message: 'The answer kept under the Idempotency-Key cannot be decrypted',
      })
    body = JSON.parse(opened.value)
  }
  return { status: status as number, body, headers: kept.headers ?? {}, project_id }
}

/** Renews the leases of claims. Rows that a transaction holds are left out: it is about to settle them. */
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

/** The refusal of a request whose transaction found its key claimed by another one; null for any other error. */
export const claimLost = (error: unknown): AppError | null => (sqlStateOf(error) === CLAIM_LOST ? inProgress() : null)

/**
 * A part of a change that keeps its answer, or what the answer will be made of, for repeats. It fails the change where another
 * request has claimed the key: this one was taken for lost, and the other one makes the change.
 */
export const keepWithChange =
  ({ credential_id, path, key, claim }: IdempotencyClaim, given: { status: number; body: unknown } | { made: Made }) =>
  (guard: Fragment): Fragment => {
    const kept =
      'made' in given
        ? sql.fragment`made = ${jsonb(given.made)}`
        : sql.fragment`status = ${given.status}, body = ${jsonb(given.body)}`
    return sql.fragment`
      update idempotency_keys
      set ${kept}, claim = case when claim = ${claim} and status is null then claim else idempotency_claim_lost() end
      where credential_id = ${credential_id} and path = ${path} and key = ${key} and ${guard}`
  }

/** Notes what a request is about to do outside of the database. Raises IDEMPOTENCY_IN_PROGRESS when its claim was lost. */
export async function noteMade(db: Queryable, claim: IdempotencyClaim, made: Made): Promise<void> {
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set made = ${jsonb(made)} where ${isClaimed(claim)}`)
  if (rowCount === 0) throw inProgress()
}

const sealFor = (claim: IdempotencyKey) => ({
  kind: 'idempotency',
  id: `${claim.credential_id}:${claim.path}:${claim.key}`,
  project_id: claim.project_id ?? '*',
})

/** Answers that show a secret. */
export const sealedResponses = sealedColumn({
  table: 'idempotency_keys',
  column: 'sealed_body',
  kind: 'idempotency',
  id: sql.fragment`(credential_id || ':' || path || ':' || key)`,
})

const isClaimed = ({ credential_id, path, key, claim }: IdempotencyClaim): Fragment => sql.fragment`
  credential_id = ${credential_id} and path = ${path} and key = ${key} and claim = ${claim} and status is null`

/** A condition in SQL over what an answer shows: where it does not hold, repeats get the refusal in its place. */
export type ReplayCondition = { holds: Fragment; refusal: () => AppError }

/**
 * Keeps the answer for repeats; an answer that holds a secret is sealed. Returns whether the claim was still held. A condition
 * is asked in the statement that keeps it.
 */
export async function storeResponse(
  db: Queryable,
  { secrets, config }: Pick<Services, 'secrets' | 'config'>,
  claim: IdempotencyClaim,
  given: { status: number; body?: unknown; headers?: Record<string, string>; keptWhile?: ReplayCondition },
  secret: boolean,
): Promise<boolean> {
  const { status, headers, keptWhile } = given
  const sealed = secret && status < 300 ? secrets.seal(JSON.stringify(given.body ?? null), sealFor(claim)) : null
  const body = sealed ? jsonb(null) : jsonb(given.body)
  const answer = sql.fragment`select ${status}::int, ${body}, ${jsonb(headers)}`
  const kept = keptWhile
    ? sql.fragment`
      ${answer}, 1 where ${keptWhile.holds}
      union all select ${refused(config, keptWhile.refusal())}, 2 order by 4 limit 1`
    : sql.fragment`${answer}, 1`
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set status = k.its_status, body = k.its_body, sealed_body = ${sealed}, headers = k.its_headers
    from (${kept}) k (its_status, its_body, its_headers, choice) where ${isClaimed(claim)}`)
  return rowCount > 0
}

/** The same in the transaction of what is answered for. Raises IDEMPOTENCY_IN_PROGRESS when the claim was lost. */
export async function keepInTransaction(...args: Parameters<typeof storeResponse>): Promise<void> {
  if (!(await storeResponse(...args))) throw inProgress()
}

/** A refusal as it is kept: its status, body and headers. */
const refused = ({ DOCS_BASE_URL }: Services['config'], refusal: AppError): Fragment =>
  sql.fragment`${refusal.status}::int, ${jsonb(errorBody(refusal, DOCS_BASE_URL))}, null::jsonb`

/**
 * Puts a refusal in the place of the kept answers of a project that name one of these ids, so that a repeat neither shows
 * them nor does the work again. Returns how many there were. By idempotency_keys_named.
 */
export async function eraseStoredResponses(
  db: Queryable,
  { config }: Pick<Services, 'config'>,
  projectId: string,
  ids: readonly string[],
  refusal: AppError,
): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    update idempotency_keys set (status, body, headers) = (select ${refused(config, refusal)})
    where body is not null and ${NAMED} ?| ${sql.array([...ids], 'text')} and project_id = ${projectId}
      and body -> 'error' ->> 'code' is distinct from ${refusal.code}`)
  return rowCount
}

/** The ids that an answer names, as the index has them. */
const NAMED = sql.fragment`jsonb_path_query_array(body,
  'strict $.** ? (@.type() == "string" && @ like_regex "^[a-z_]+_[0-9a-z]{26}$")')`

/** Forgets a claim: the next request with the key is a first one. */
export async function forgetIdempotency(db: Queryable, claim: IdempotencyClaim): Promise<void> {
  await db.query(voidStatement`delete from idempotency_keys where ${isClaimed(claim)}`)
}

/** Ends the lease of a claim: the next request with the key answers for what this one has made, or is a first one. */
export async function releaseIdempotencyKey(db: Queryable, claim: IdempotencyClaim): Promise<void> {
  await db.query(voidStatement`
    with forgotten as (delete from idempotency_keys where ${isClaimed(claim)} and made is null)
    update idempotency_keys set leased_until = now() - interval '1 second' where ${isClaimed(claim)} and made is not null`)
}
