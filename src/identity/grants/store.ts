import { z } from 'zod'
import type { Pool } from '#core/db/pool.ts'
import { countStatement, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { sha256Of } from '#core/secrets/digest.ts'

/** Identifiers of objects are stored only as hashes. */
const hashOf = (text: string | undefined) => (text === undefined ? null : sql.binary(sha256Of(text)))

const StoredObject = z.object({
  id_hash: z.string(),
  sealed: z.string(),
  consumed: z.int().nullable(),
  consumed_seconds_ago: z.number().nullable(),
  scopes: z.array(z.string()).nullable(),
})
const objectRow = sql.type(StoredObject)

const objectColumns = sql.fragment`encode(o.id_hash, 'hex') as id_hash, o.sealed,
  floor(extract(epoch from o.consumed_at))::bigint as consumed,
  extract(epoch from now() - o.consumed_at)::float8 as consumed_seconds_ago, g.openid_scopes || g.scopes as scopes`

/** Identifier for an object lookup: its ID or another identifier of the library. */
export type Lookup = { by: 'id' | 'uid' | 'user_code'; value: string }

const COLUMNS = { id: 'id_hash', uid: 'uid_hash', user_code: 'user_code_hash' } as const

/**
 * Returns an object with the current scopes of its grant; null once expired. Expired device codes are returned, so that
 * their clients learn of the expiry. Primary key, oauth_objects_uid, oauth_objects_user_code.
 */
export const findObject = (db: Queryable, model: string, { by, value }: Lookup) =>
  db.maybeOne(objectRow`
    select ${objectColumns} from oauth_objects o left join oauth_grants g on g.id = o.grant_id
    where o.model = ${model} and o.${sql.identifier([COLUMNS[by]])} = ${sql.binary(sha256Of(value))} and o.sealed is not null
      and (o.expires_at > now() or o.model = 'DeviceCode')`)

const polledRow = sql.type(StoredObject.extend({ too_fast: z.boolean() }))

/**
 * Records a poll of a device code and returns it. A poll before the interval has passed extends the interval by five
 * seconds. Primary key.
 */
export const pollDeviceCode = (db: Queryable, id: string) =>
  db.maybeOne(polledRow`
    with before as (
      select id_hash, coalesce(polled_at > now() - poll_seconds * interval '1 second', false) as too_fast from oauth_objects
      where model = 'DeviceCode' and id_hash = ${sql.binary(sha256Of(id))} for no key update
    ), polled as (
      update oauth_objects o set polled_at = now(), poll_seconds = o.poll_seconds + case when b.too_fast then 5 else 0 end
      from before b where o.model = 'DeviceCode' and o.id_hash = b.id_hash
      returning o.*, b.too_fast
    )
    select ${objectColumns}, o.too_fast from polled o left join oauth_grants g on g.id = o.grant_id`)

type ObjectValues = {
  sealed: string
  uid?: string
  userCode?: string
  grantId?: string
  expiresAt: Date
}

/** Inserts or updates an object. */
export const upsertObject = (db: Queryable, model: string, id: string, values: ObjectValues) =>
  db.query(upsertStatement(model, id, values))

const upsertStatement = (
  model: string,
  id: string,
  { sealed, uid, userCode, grantId, expiresAt }: ObjectValues,
) => voidStatement`
  insert into oauth_objects (model, id_hash, uid_hash, user_code_hash, grant_id, sealed, expires_at)
  values (${model}, ${sql.binary(sha256Of(id))}, ${hashOf(uid)}, ${hashOf(userCode)}, ${grantId ?? null}, ${sealed},
    ${expiresAt.toISOString()}::timestamptz)
  on conflict (model, id_hash) do update set uid_hash = excluded.uid_hash, grant_id = excluded.grant_id,
    sealed = excluded.sealed, expires_at = excluded.expires_at`

/**
 * Inserts a refresh token; false if its grant has ended. Extends the grant to the expiry of the token, at most to its
 * agreed end. A repeated refresh leaves the token unchanged.
 */
export const putRefreshToken = async (
  db: Queryable,
  id: string,
  { sealed, grantId, expiresAt }: ObjectValues & { grantId: string },
): Promise<boolean> =>
  (
    await db.query(voidStatement`
    with extended as (
      update oauth_grants set expires_at = least(ends_at, ${expiresAt.toISOString()}::timestamptz), last_used_at = now()
      where id = ${grantId} and revoked_at is null returning client_id
    ), used as (
      update oauth_clients c set last_used_at = now() from extended e
      where c.id = e.client_id and (c.last_used_at is null or c.last_used_at < now() - interval '1 day')
    )
    insert into oauth_objects (model, id_hash, grant_id, sealed, expires_at)
    select 'RefreshToken', ${sql.binary(sha256Of(id))}, ${grantId}, ${sealed}, ${expiresAt.toISOString()}::timestamptz
    from extended
    on conflict (model, id_hash) do update set expires_at = oauth_objects.expires_at`)
  ).rowCount > 0

/**
 * Consumes a single-use object; false if another request consumed it first, longer ago than the grace. The row stays
 * until it expires, to detect replayed codes and tokens.
 */
export const consumeObject = async (db: Queryable, model: string, id: string, graceSeconds: number): Promise<boolean> =>
  (await db.maybeOneFirst(idStatement`
    update oauth_objects set consumed_at = coalesce(consumed_at, now())
    where model = ${model} and id_hash = ${sql.binary(sha256Of(id))}
      and (consumed_at is null or consumed_at > now() - ${graceSeconds} * interval '1 second') returning model as id`)) !==
  null

/** Deletes an object and returns whether it existed. */
export const deleteObject = async (db: Queryable, model: string, id: string): Promise<boolean> =>
  (
    await db.query(
      voidStatement`delete from oauth_objects where model = ${model} and id_hash = ${sql.binary(sha256Of(id))}`,
    )
  ).rowCount > 0

/** Records a proof of possession; false if it was already recorded. */
export const recordProof = async (db: Queryable, id: string, until: Date): Promise<boolean> =>
  (await db.maybeOneFirst(idStatement`
    insert into oauth_objects (model, id_hash, expires_at)
    values ('ReplayDetection', ${sql.binary(sha256Of(id))}, ${until.toISOString()}::timestamptz)
    on conflict do nothing returning model as id`)) !== null

/** Locks an object for a change outside of the library. */
export const lockObject = (db: Queryable, model: string, id: string) =>
  db.maybeOneFirst(sql.type(z.object({ sealed: z.string() }))`
    select sealed from oauth_objects
    where model = ${model} and id_hash = ${sql.binary(sha256Of(id))} and expires_at > now() for no key update`)

/** Updates an object; the caller holds its lock. */
export const rewriteObject = (db: Queryable, model: string, id: string, sealed: string) =>
  db.query(
    voidStatement`update oauth_objects set sealed = ${sealed} where model = ${model} and id_hash = ${sql.binary(sha256Of(id))}`,
  )

/** Counts unused device codes. Index oauth_objects_user_code. */
export const countDeviceCodes = (db: Queryable): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*) from oauth_objects
    where model = 'DeviceCode' and user_code_hash is not null and consumed_at is null and expires_at > now()`)

const usernameRow = sql.type(z.object({ username: z.string() }))

/** Returns the username of a user who may sign in. Primary key. */
export const findUsername = (db: Queryable, id: string): Promise<string | null> =>
  db.maybeOneFirst(usernameRow`select username from users where id = ${id} and disabled_at is null`)

const GrantState = z.object({
  user_id: z.string(),
  client_id: z.string(),
  project_id: z.string().nullable(),
  scopes: z.array(z.string()),
  openid_scopes: z.array(z.string()),
  created: z.int(),
  ends: z.int(),
})
export type GrantState = z.output<typeof GrantState>
const grantRow = sql.type(GrantState)

/** Returns a live grant with its times in seconds. Primary key. */
export const findGrant = (db: Queryable, id: string): Promise<GrantState | null> =>
  db.maybeOne(grantRow`
    select user_id, client_id, project_id, scopes, openid_scopes, extract(epoch from created_at)::bigint as created,
      extract(epoch from ends_at)::bigint as ends
    from oauth_grants where id = ${id} and revoked_at is null and expires_at > now()`)

type NewGrant = {
  id: string
  user_id: string
  project_id: string | null
  client_id: string
  client_name: string | null
  scopes: string[]
  openid_scopes: string[]
  endsAt: Date
  expiresAt: Date
}

export const insertGrant = (db: Queryable, grant: NewGrant) =>
  db.query(voidStatement`
    insert into oauth_grants (id, user_id, project_id, client_id, client_name, scopes, openid_scopes, ends_at, expires_at)
    values (${grant.id}, ${grant.user_id}, ${grant.project_id}, ${grant.client_id}, ${grant.client_name},
      ${sql.array(grant.scopes, 'text')}, ${sql.array(grant.openid_scopes, 'text')},
      ${grant.endsAt.toISOString()}::timestamptz, ${grant.expiresAt.toISOString()}::timestamptz)`)

const revokedRow = sql.type(z.object({ id: z.string(), user_id: z.string(), project_id: z.string().nullable() }))

/**
 * Ends a grant and deletes its unused codes and tokens; null if it had already ended. The sweep deletes the row after
 * its `expires_at`.
 */
export const endGrant = (db: Queryable, id: string, reason: string) =>
  db.maybeOne(revokedRow`
    with ended as (
      update oauth_grants set revoked_at = now(), revoked_reason = ${reason}, expires_at = least(expires_at, now())
      where id = ${id} and revoked_at is null
      returning id, user_id, project_id
    ), dropped as (
      delete from oauth_objects o using ended e where o.grant_id = e.id and o.consumed_at is null
    )
    select id, user_id, project_id from ended`)

/**
 * Ends the grants of a user to a client, except one, and deletes their unused codes and tokens. Index oauth_grants_user.
 * The caller announces the change of the user.
 */
export const endUserGrants = (
  db: Queryable,
  { userId, clientId, except, reason }: { userId: string; clientId: string; except: string | null; reason: string },
) =>
  db.query(voidStatement`
    with ended as (
      update oauth_grants set revoked_at = now(), revoked_reason = ${reason}, expires_at = least(expires_at, now())
      where user_id = ${userId} and client_id = ${clientId} and revoked_at is null and id is distinct from ${except}
      returning id
    )
    delete from oauth_objects o using ended e where o.grant_id = e.id and o.consumed_at is null`)

/** Narrows a grant; the caller holds its lock. */
export const narrowGrant = (db: Queryable, id: string, scopes: readonly string[]) =>
  db.query(voidStatement`update oauth_grants set scopes = ${sql.array([...scopes], 'text')} where id = ${id}`)

/** Records the use of grants, at most once a minute each, regardless of the number of processes. */
export const recordGrantUse = (db: Queryable, ids: string[], now: Date) =>
  db.query(voidStatement`
    update oauth_grants set last_used_at = ${now.toISOString()}::timestamptz
    where id = any(${sql.array(ids, 'text')})
      and (last_used_at is null or last_used_at <= ${now.toISOString()}::timestamptz - interval '1 minute')`)

const absentProject = sql.type(z.object({ id: z.string(), cell: z.string().nullable() }))

/**
 * Returns the projects of grants that are not in this database, with the name of the cell to which they were moved; not those
 * that are being moved. Index oauth_grants_project.
 */
export const listAbsentProjects = (db: Queryable): Promise<readonly { id: string; cell: string | null }[]> =>
  db.any(absentProject`
    select distinct g.project_id as id, c.cell from oauth_grants g left join project_cells c using (project_id)
    where g.project_id is not null and c.moving_to is null
      and not exists (select from projects p where p.id = g.project_id)`)

/** Whether a project is not on the way to another cell, and in the cell in which a list had it. Primary key of project_cells. */
export const isStillIn = (db: Queryable, { id, cell }: { id: string; cell: string | null }): Promise<boolean> =>
  db.oneFirst(sql.type(z.object({ still: z.boolean() }))`
    select not exists (
      select from project_cells where project_id = ${id} and (moving_to is not null or cell is distinct from ${cell})) as still`)

/** Deletes the grants of a project and returns their number. Index oauth_grants_project. */
export const deleteGrantsOfProject = async (db: Queryable, projectId: string): Promise<number> =>
  (await db.query(voidStatement`delete from oauth_grants where project_id = ${projectId}`)).rowCount

const clientRow = sql.type(
  z.object({ metadata: z.record(z.string(), z.unknown()), secret_hash: z.string().nullable() }),
)

/** Returns a registered client. Primary key. */
export const findClient = (db: Queryable, id: string) =>
  db.maybeOne(clientRow`
    select metadata, encode(secret_hash, 'hex') as secret_hash from oauth_clients where id = ${id} and kind = 'registered'`)

/**
 * Inserts a registered client; false if `limit` clients have no consent yet. Serialized across the deployment, since
 * concurrent inserts could exceed the limit. Index oauth_clients_unused.
 */
export const insertClient = (
  db: Pool,
  client: { id: string; name: string | null; metadata: object; secretHash: Buffer | null },
  limit: number,
): Promise<boolean> =>
  db.transaction(async tx => {
    await tx.query(sql.type(z.object({}))`select from pg_advisory_xact_lock(hashtext('muster oauth clients'))`)
    const { rowCount } = await tx.query(voidStatement`
      insert into oauth_clients (id, kind, client_name, metadata, secret_hash)
      select ${client.id}, 'registered', ${client.name}, ${jsonb(client.metadata)},
        ${client.secretHash && sql.binary(client.secretHash)}
      where (select count(*) from (select from oauth_clients where last_used_at is null limit ${limit}) unused) < ${limit}`)
    return rowCount > 0
  })

/** Records a consent to a client and stores the current metadata document, if it has one. */
export const recordConsent = (db: Queryable, client: { id: string; name: string | null; document: object | null }) =>
  client.document
    ? db.query(voidStatement`
        insert into oauth_clients (id, kind, client_name, metadata, last_used_at)
        values (${client.id}, 'metadata_document', ${client.name}, ${jsonb(client.document)}, now())
        on conflict (id) do update set client_name = excluded.client_name, metadata = excluded.metadata, last_used_at = now()`)
    : db.query(voidStatement`update oauth_clients set last_used_at = now() where id = ${client.id}`)

/** Deletes a client with its grants and returns whether it existed. */
export const deleteClient = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOneFirst(idStatement`
    with grants as (delete from oauth_grants where client_id = ${id})
    delete from oauth_clients where id = ${id} returning id`)) !== null

const useRow = sql.type(z.object({ count: z.int(), seconds: z.int() }))

/**
 * Counts one use of a limit by a subject. Returns the uses in its window and the seconds until the window ends. Writes
 * nothing beyond the limit.
 */
export async function countLimitUse(
  db: Queryable,
  kind: string,
  subject: string,
  { limit, windowSeconds }: { limit: number; windowSeconds: number },
): Promise<{ count: number; seconds: number }> {
  const window = sql.fragment`${windowSeconds} * interval '1 second'`
  const secondsLeft = sql.fragment`ceil(extract(epoch from started_at + ${window} - now()))::int as seconds`
  const use = await db.maybeOne(useRow`
    insert into oauth_limits as l (kind, subject, count) values (${kind}, ${subject}, 1)
    on conflict (kind, subject) do update set
      count = case when l.started_at <= now() - ${window} then 1 else l.count + 1 end,
      started_at = case when l.started_at <= now() - ${window} then now() else l.started_at end
    where l.count <= ${limit} or l.started_at <= now() - ${window}
    returning count, ${secondsLeft}`)
  return use ?? { count: limit + 1, seconds: (await findLimitUse(db, kind, subject, windowSeconds)).seconds }
}

/** Refunds one use in the current window. */
export const refundLimitUse = (db: Queryable, kind: string, subject: string) =>
  db.query(
    voidStatement`update oauth_limits set count = greatest(count - 1, 0) where kind = ${kind} and subject = ${subject}`,
  )

/** Returns the uses of a limit in its window, without counting one. */
export const findLimitUse = async (
  db: Queryable,
  kind: string,
  subject: string,
  windowSeconds: number,
): Promise<{ count: number; seconds: number }> =>
  (await db.maybeOne(useRow`
    select count, greatest(1, ceil(extract(epoch from started_at + ${windowSeconds} * interval '1 second' - now())))::int as seconds
    from oauth_limits
    where kind = ${kind} and subject = ${subject} and started_at > now() - ${windowSeconds} * interval '1 second'`)) ?? {
    count: 0,
    seconds: 1,
  }

const keyRow = sql.type(z.object({ kid: z.string(), sealed: z.string() }))

/** Returns the signing keys that still verify, the signing key first. */
export const listLiveKeys = (db: Queryable) =>
  db.any(keyRow`
    select kid, sealed from oauth_keys where retired_at is null or retired_at > now() - interval '1 day'
    order by retired_at desc nulls first, created_at desc`)

/** Serializes the creation and replacement of signing keys until the transaction ends. */
export const lockKeys = (db: Queryable) =>
  db.query(sql.type(z.object({}))`select from pg_advisory_xact_lock(hashtext('muster oauth keys'))`)

/** Inserts a signing key; earlier keys only verify from then on. */
export const replaceKey = (db: Queryable, kid: string, sealed: string) =>
  db.query(voidStatement`
    with retired as (update oauth_keys set retired_at = now() where retired_at is null)
    insert into oauth_keys (kid, sealed) values (${kid}, ${sealed})`)

const returningOne = sql.fragment`returning 1`

/** Deletes one batch of each kind of expired rows and returns their number. */
export async function sweepOauthRows(db: Queryable, limit: number): Promise<number> {
  const countRow = sql.type(z.object({ count: z.int() }))
  const { count } = await db.one(countRow`
    with objects as (
      delete from oauth_objects where (model, id_hash) in (
        select model, id_hash from oauth_objects where expires_at < now() limit ${limit}) ${returningOne}
    ), grants as (
      delete from oauth_grants where id in (
        select id from oauth_grants where expires_at < now() - interval '30 days' limit ${limit}) ${returningOne}
    ), clients as (
      delete from oauth_clients c where c.id in (
        select id from oauth_clients u
        where coalesce(u.last_used_at, u.created_at)
            < now() - case when u.last_used_at is null then interval '1 day' else interval '90 days' end
          and not exists (select from oauth_grants g where g.client_id = u.id and g.revoked_at is null and g.expires_at > now())
        limit ${limit}) ${returningOne}
    ), limits as (
      delete from oauth_limits where (kind, subject) in (
        select kind, subject from oauth_limits where started_at < now() - interval '1 hour' limit ${limit}) ${returningOne}
    ), keys as (
      delete from oauth_keys where retired_at < now() - interval '1 day' ${returningOne}
    )
    select ((select count(*) from objects) + (select count(*) from grants) + (select count(*) from clients)
      + (select count(*) from limits) + (select count(*) from keys))::int as count`)
  return count
}
