import { type Queryable, sql } from '../core/db/sql.ts'

/** A policy as an attachment names it, in attach order. */
export type AttachedPolicy = { id: string; version: number; updated_at: string; document: unknown }

export type PrincipalUser = {
  id: string
  username: string
  role: 'admin' | 'user'
  token_version: number
  disabled_at: string | null
  policies: AttachedPolicy[]
}

export type PrincipalKey = {
  id: string
  project_id: string | null
  expires_at: string | null
  /** End of the grace of a rotated string; null when the current one was presented. */
  string_expires_at: string | null
  allowed_ips: string[] | null
  policies: AttachedPolicy[]
}

const attached = sql.fragment`coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'version', p.version, 'updated_at', p.updated_at, 'document', p.document)
  order by a.position), '[]')`

const userRecord = sql.fragment`jsonb_build_object('id', u.id, 'username', u.username, 'role', u.role, 'token_version', u.token_version,
  'disabled_at', u.disabled_at, 'policies', (
    select ${attached} from user_policies a join policies p on p.id = a.policy_id where a.user_id = u.id))`

const keyRecord = sql.fragment`jsonb_build_object('id', k.id, 'project_id', k.project_id, 'expires_at', k.expires_at,
  'allowed_ips', k.allowed_ips, 'policies', (
    select ${attached} from project_key_policies a join policies p on p.id = a.policy_id where a.key_id = k.id))`

/** A user with attachments and their documents. Primary key. */
export const userPrincipal = (db: Queryable, id: string): Promise<{ user: PrincipalUser } | null> =>
  db.maybeOne(sql.unsafe`select ${userRecord} as user from users u where u.id = ${id}`) as Promise<{
    user: PrincipalUser
  } | null>

type KeyAndOwner = { key: Omit<PrincipalKey, 'string_expires_at'>; user: PrincipalUser }

/** A key with its owner, both with their documents. Primary key. */
export const keyPrincipal = (db: Queryable, id: string): Promise<KeyAndOwner | null> =>
  db.maybeOne(sql.unsafe`
    select ${keyRecord} as key, ${userRecord} as user from project_keys k join users u on u.id = k.user_id where k.id = ${id}`) as Promise<KeyAndOwner | null>

/** The same by the hash of a key string, current or in its grace. Unique index on key_hash, index project_keys_previous. */
export const keyPrincipalByHash = (
  db: Queryable,
  hash: Buffer,
): Promise<(KeyAndOwner & { string_expires_at: string | null }) | null> =>
  db.maybeOne(sql.unsafe`
    select ${keyRecord} as key, ${userRecord} as user,
      case when k.key_hash = ${sql.binary(hash)} then null else coalesce(k.previous_key_expires_at, '-infinity') end::text as string_expires_at
    from project_keys k join users u on u.id = k.user_id
    where k.key_hash = ${sql.binary(hash)} or k.previous_key_hash = ${sql.binary(hash)}
    order by k.key_hash = ${sql.binary(hash)} desc limit 1`) as Promise<
    (KeyAndOwner & { string_expires_at: string | null }) | null
  >

/** Notes the use of keys, at most once a minute each whatever the number of processes. */
export const noteKeyUse = (db: Queryable, ids: string[], now: Date) =>
  db.query(sql.unsafe`
    update project_keys set last_used_at = ${now.toISOString()}::timestamptz
    where id = any(${sql.array(ids, 'text')})
      and (last_used_at is null or last_used_at <= ${now.toISOString()}::timestamptz - interval '1 minute')`)
