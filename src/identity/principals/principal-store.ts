import { z } from 'zod'
import { extensionPoint } from '#core/base/declarations.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'

/** Attached policy. Lists are in attachment order. */
const AttachedPolicy = z.object({ id: z.string(), version: z.int(), updated_at: z.string(), document: z.unknown() })
export type AttachedPolicy = z.output<typeof AttachedPolicy>

const PrincipalUser = z.object({
  id: z.string(),
  username: z.string(),
  role: z.enum(['admin', 'user']),
  token_version: z.int(),
  disabled_at: z.string().nullable(),
  policies: z.array(AttachedPolicy),
})
export type PrincipalUser = z.output<typeof PrincipalUser>

const PrincipalKey = z.object({
  id: z.string(),
  project_id: z.string().nullable(),
  expires_at: z.string().nullable(),
  allowed_ips: z.array(z.string()).nullable(),
  policies: z.array(AttachedPolicy),
})
export type PrincipalKey = z.output<typeof PrincipalKey>

const attachedPolicies = sql.fragment`coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'version', p.version, 'updated_at', p.updated_at, 'document', p.document)
  order by a.position), '[]')`

const userRecord = sql.fragment`jsonb_build_object('id', u.id, 'username', u.username, 'role', u.role, 'token_version', u.token_version,
  'disabled_at', u.disabled_at, 'policies', (
    select ${attachedPolicies} from user_policies a join policies p on p.id = a.policy_id where a.user_id = u.id))`

const keyRecord = sql.fragment`jsonb_build_object('id', k.id, 'project_id', k.project_id, 'expires_at', k.expires_at,
  'allowed_ips', k.allowed_ips, 'policies', (
    select ${attachedPolicies} from project_key_policies a join policies p on p.id = a.policy_id where a.key_id = k.id))`

const PrincipalGrant = z.object({
  id: z.string(),
  client_id: z.string(),
  project_id: z.string().nullable(),
  scopes: z.array(z.string()),
  expires_at: z.string(),
})
export type PrincipalGrant = z.output<typeof PrincipalGrant>

const attachedRow = sql.type(AttachedPolicy)

/** Returns a policy with its document. Primary key. */
export const findAttachedPolicy = (db: Queryable, id: string): Promise<AttachedPolicy | null> =>
  db.maybeOne(attachedRow`select id, version, updated_at, document from policies where id = ${id}`)

const userRow = sql.type(z.object({ user: PrincipalUser }))

/** Returns a user with the attached policies. Primary key. */
export const findUserPrincipal = (db: Queryable, id: string) =>
  db.maybeOne(userRow`select ${userRecord} as user from users u where u.id = ${id}`)

const KeyAndOwner = z.object({ key: PrincipalKey, user: PrincipalUser })
const keyAndOwnerRow = sql.type(KeyAndOwner)

/** Returns a key with its owner and the policies of both. Primary key. */
export const findKeyPrincipal = (db: Queryable, id: string) =>
  db.maybeOne(keyAndOwnerRow`
    select ${keyRecord} as key, ${userRecord} as user from project_keys k join users u on u.id = k.user_id where k.id = ${id}`)

const keyByHashRow = sql.type(KeyAndOwner.extend({ string_expires_at: z.string().nullable() }))

/**
 * Returns a key by the hash of its current or previous string. `string_expires_at` is the end of the grace period, null
 * for the current string. Unique index on key_hash, index project_keys_previous.
 */
export const findKeyPrincipalByHash = (db: Queryable, hash: Buffer) =>
  db.maybeOne(keyByHashRow`
    select ${keyRecord} as key, ${userRecord} as user,
      case when k.key_hash = ${sql.binary(hash)} then null else coalesce(k.previous_key_expires_at, '-infinity') end::text as string_expires_at
    from project_keys k join users u on u.id = k.user_id
    where k.key_hash = ${sql.binary(hash)} or k.previous_key_hash = ${sql.binary(hash)}
    order by k.key_hash = ${sql.binary(hash)} desc limit 1`)

/** Returns the expression of the record of an actor by its id, null if it is deleted. Contributed by the module of actors. */
export const actorRecord = extensionPoint<(id: Fragment) => Fragment>({
  name: 'actor record of principals',
  folder: 'identity/principals',
  description: 'Gives the SQL of the record of an actor, for records of principals',
})

const PrincipalActor = z.object({
  id: z.string(),
  project_id: z.string(),
  /** Read only if spans have it. */
  external_id: z.string().nullish(),
  tags: z.record(z.string(), z.string()),
  token_version: z.int(),
})
export type PrincipalActor = z.output<typeof PrincipalActor>

const ActorAndIssuer = z.object({
  key: PrincipalKey.nullable(),
  user: PrincipalUser.nullable(),
  actor: PrincipalActor.nullable(),
})
const actorAndIssuerRow = sql.type(ActorAndIssuer)

/**
 * Returns actors, each with the key or user that issued a token for it, in the order of the references. Deleted ones are
 * null. Primary keys.
 */
export const findActorPrincipals = (
  db: Queryable,
  references: readonly { actor_id: string; issuer_id: string }[],
): Promise<readonly z.output<typeof ActorAndIssuer>[]> => {
  const ids = (name: 'actor_id' | 'issuer_id') =>
    sql.array(
      references.map(each => each[name]),
      'text',
    )
  return db.any(actorAndIssuerRow`
    select case when k.id is not null then ${keyRecord} end as key,
      case when u.id is not null then ${userRecord} end as user,
      ${actorRecord.only()?.(sql.fragment`r.actor_id`) ?? sql.fragment`null::jsonb`} as actor
    from unnest(${ids('actor_id')}, ${ids('issuer_id')}) with ordinality r (actor_id, issuer_id, position)
    left join project_keys k on k.id = r.issuer_id
    left join users u on u.id = coalesce(k.user_id, r.issuer_id)
    order by r.position`)
}

const grantAndUserRow = sql.type(z.object({ grant: PrincipalGrant, user: PrincipalUser }))

/** Returns an unrevoked OAuth grant with its user and the user's policies. Primary key. */
export const findGrantPrincipal = (db: Queryable, id: string) =>
  db.maybeOne(grantAndUserRow`
    select ${userRecord} as user, jsonb_build_object('id', g.id, 'client_id', g.client_id, 'project_id', g.project_id,
      'scopes', g.scopes, 'expires_at', g.expires_at) as grant
    from oauth_grants g join users u on u.id = g.user_id where g.id = ${id} and g.revoked_at is null`)

/** Records the use of keys, at most once a minute each, regardless of the number of processes. */
export const recordKeyUse = (db: Queryable, ids: string[], now: Date) =>
  db.query(voidStatement`
    update project_keys set last_used_at = ${now.toISOString()}::timestamptz
    where id = any(${sql.array(ids, 'text')})
      and (last_used_at is null or last_used_at <= ${now.toISOString()}::timestamptz - interval '1 minute')`)

/** Records the use of keys by browsers. */
export const recordBrowserUse = (db: Queryable, ids: string[], now: Date) =>
  db.query(voidStatement`
    update project_keys set browser_used_at = ${now.toISOString()}::timestamptz
    where id = any(${sql.array(ids, 'text')})
      and (browser_used_at is null or browser_used_at <= ${now.toISOString()}::timestamptz - interval '1 minute')`)
