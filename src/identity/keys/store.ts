import { type Queryable, sql } from '../../core/db/sql.ts'
import { type KeyFields, type KeyRow, projectKey } from './model.ts'

/** Adds a key with its policies, in one statement. */
export const insertKey = (
  db: Queryable,
  key: { id: string; user_id: string; hash: Buffer; prefix: string } & KeyFields,
): Promise<KeyRow> =>
  db.one(sql.unsafe`
    with made as (
      insert into project_keys (id, name, key_hash, key_prefix, user_id, project_id, allowed_ips, expires_at)
      values (${key.id}, ${key.name ?? null}, ${sql.binary(key.hash)}, ${key.prefix}, ${key.user_id},
        ${key.project_id ?? null}, ${key.allowed_ips ? sql.array(key.allowed_ips, 'text') : null},
        ${key.expires_at ?? null}::timestamptz)
      returning *
    ), attached as (
      insert into project_key_policies (key_id, policy_id, position)
      select made.id, p.policy_id, p.position
      from made, unnest(${sql.array(key.policy_ids ?? [], 'text')}) with ordinality as p(policy_id, position)
      returning policy_id, position
    )
    select t.id, t.name, t.key_prefix, t.user_id, t.project_id,
      array(select policy_id from attached order by position) as policy_ids,
      t.allowed_ips, t.expires_at, t.last_used_at, t.rotated_at, t.created_at, t.updated_at
    from made t`) as Promise<KeyRow>

/** Writes the fields a patch names; the caller holds the row's lock. */
export async function updateKey(db: Queryable, id: string, patch: KeyFields): Promise<KeyRow> {
  const sets = [sql.fragment`updated_at = now()`]
  if (patch.name !== undefined) sets.push(sql.fragment`name = ${patch.name}`)
  if (patch.project_id !== undefined) sets.push(sql.fragment`project_id = ${patch.project_id}`)
  if (patch.allowed_ips !== undefined)
    sets.push(sql.fragment`allowed_ips = ${patch.allowed_ips ? sql.array(patch.allowed_ips, 'text') : null}`)
  if (patch.expires_at !== undefined) sets.push(sql.fragment`expires_at = ${patch.expires_at}::timestamptz`)
  await db.query(sql.unsafe`update project_keys set ${sql.join(sets, sql.fragment`, `)} where id = ${id}`)
  if (patch.policy_ids !== undefined) {
    await db.query(sql.unsafe`delete from project_key_policies where key_id = ${id}`)
    await db.query(sql.unsafe`
      insert into project_key_policies (key_id, policy_id, position)
      select ${id}, p.policy_id, p.position
      from unnest(${sql.array(patch.policy_ids, 'text')}) with ordinality as p(policy_id, position)`)
  }
  return db.one(sql.unsafe`select ${projectKey.columns} from project_keys t where t.id = ${id}`) as Promise<KeyRow>
}

/**
 * Replaces the key string in one statement, so that concurrent rotations queue on the row. The old string is good for
 * `graceSeconds` more, until `graceEnd`. False when the key is gone.
 */
export const rotateKey = async (
  db: Queryable,
  id: string,
  next: { hash: Buffer; prefix: string },
  graceSeconds: number,
  graceEnd: Date,
): Promise<boolean> =>
  (await db.maybeOneFirst(sql.unsafe`
    update project_keys set key_hash = ${sql.binary(next.hash)}, key_prefix = ${next.prefix},
      previous_key_hash = case when ${graceSeconds}::int > 0 then key_hash end,
      previous_key_expires_at = case when ${graceSeconds}::int > 0 then ${graceEnd.toISOString()}::timestamptz end,
      rotated_at = now(), updated_at = now()
    where id = ${id} returning 1`)) !== null

/** Takes the row's lock, so that the policies read after it are those of the last writer. False when the key is gone. */
export const lockKey = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOneFirst(sql.unsafe`select 1 from project_keys where id = ${id} for update`)) !== null

export const deleteKey = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`delete from project_keys where id = ${id}`)

/** Audited requests of a key per day, oldest first (index audit_entries_created bounds the scan). */
export const auditedDays = (
  db: Queryable,
  id: string,
  since: Date,
): Promise<readonly { date: string; requests: number }[]> =>
  db.any(sql.unsafe`
    select (created_at at time zone 'UTC')::date as date, count(*) as requests from audit_entries
    where principal_type = 'api_key' and principal_id = ${id} and created_at >= ${since.toISOString()}::timestamptz
    group by 1 order by 1`) as Promise<readonly { date: string; requests: number }[]>

/** The newest audited request of a key since a time, null when there is none. */
export const lastAudited = (
  db: Queryable,
  id: string,
  since: Date,
): Promise<{ action: string; status: number; at: string } | null> =>
  db.maybeOne(sql.unsafe`
    select action, status, created_at as at from audit_entries
    where principal_type = 'api_key' and principal_id = ${id} and created_at >= ${since.toISOString()}::timestamptz
    order by created_at desc, id desc limit 1`) as Promise<{ action: string; status: number; at: string } | null>

/** Which of the policies exist, held against deletion to the end of the transaction. */
export const lockPolicies = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(
    sql.unsafe`select id from policies where id = any(${sql.array(ids, 'text')}) order by id for key share`,
  ) as Promise<readonly string[]>

/** Whether the project exists, held against deletion to the end of the transaction. */
export const lockProject = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOneFirst(sql.unsafe`select 1 from projects where id = ${id} for key share`)) !== null
