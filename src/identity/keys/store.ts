import { randomBytes } from 'node:crypto'
import { z } from 'zod'
import { withCell } from '#core/base/ids.ts'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { type KeyFields, type KeyRow, KeyUsage, projectKeyKind } from './model.ts'

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
const CHARACTERS = 43

/** Generates a key string, `sk_` and 256 random bits in base62, with its stored hash and prefix. */
export function generateKey(): { key: string; hash: Buffer; prefix: string } {
  let rest = BigInt(`0x${randomBytes(32).toString('hex')}`)
  let digits = ''
  for (let index = 0; index < CHARACTERS; index++) {
    digits = ALPHABET[Number(rest % 62n)] + digits
    rest /= 62n
  }
  const key = `sk_${withCell(digits)}`
  return { key, hash: sha256Of(key), prefix: key.slice(0, 11) }
}

/** Inserts a key with its policies, in one statement. */
export const insertKey = (
  db: Queryable,
  key: { id: string; user_id: string; hash: Buffer; prefix: string } & KeyFields,
): Promise<KeyRow> =>
  db.one(projectKeyKind.sql`
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
    from made t`)

/** Updates the fields of a patch; the caller holds the row lock. */
export async function updateKey(db: Queryable, id: string, { policy_ids, ...patch }: KeyFields): Promise<KeyRow> {
  if (policy_ids !== undefined)
    await db.query(voidStatement`
      with wanted as (
        select policy_id, position from unnest(${sql.array(policy_ids, 'text')}) with ordinality as w (policy_id, position)
      ), removed as (
        delete from project_key_policies where key_id = ${id} and policy_id not in (select policy_id from wanted)
      )
      insert into project_key_policies (key_id, policy_id, position)
      select ${id}, policy_id, position from wanted
      on conflict (key_id, policy_id) do update set position = excluded.position`)
  const row = await projectKeyKind.update(db, id, patch)
  if (patch.project_id === null) await copyPolicies(db, id)
  return row
}

/** Writes the policies of a key again: cells replicate changes, and have no policies of keys with a project. */
async function copyPolicies(db: Queryable, id: string): Promise<void> {
  const removed = await db.any(attachmentRow`
    delete from project_key_policies where key_id = ${id} returning policy_id, position`)
  if (removed.length > 0)
    await db.query(voidStatement`
      insert into project_key_policies (key_id, policy_id, position)
      select ${id}, policy_id, position
      from jsonb_to_recordset(${JSON.stringify(removed)}::jsonb) as r (policy_id text, position int)`)
}

/**
 * Replaces the key string; the old one is valid until `graceEnd`. The caller holds the row lock, so that each of
 * several concurrent rotations replaces the string of the previous one.
 */
export const rotateKey = (
  db: Queryable,
  id: string,
  next: { hash: Buffer; prefix: string },
  graceEnd: Date | null,
): Promise<KeyRow> =>
  db.one(projectKeyKind.sql`
    update project_keys t set key_hash = ${sql.binary(next.hash)}, key_prefix = ${next.prefix},
      previous_key_hash = ${graceEnd ? sql.fragment`t.key_hash` : sql.fragment`null`},
      previous_key_expires_at = ${graceEnd?.toISOString() ?? null}::timestamptz,
      rotated_at = now(), updated_at = now()
    where t.id = ${id} returning ${projectKeyKind.columns}`)

const attachmentRow = sql.type(z.strictObject({ policy_id: z.string(), position: z.int() }))

const dayRow = sql.type(KeyUsage.shape.days.element)

/** Returns the audited requests of a key per day, oldest first. Index audit_entries_created bounds the scan. */
export const listAuditedDays = (db: Queryable, id: string, since: Date) =>
  db.any(dayRow`
    select (created_at at time zone 'UTC')::date as date, count(*) as requests from audit_entries
    where principal_type = 'api_key' and principal_id = ${id} and created_at >= ${since.toISOString()}::timestamptz
    group by 1 order by 1`)

const actionRow = sql.type(KeyUsage.shape.last_action.unwrap())

/** Returns the newest audited request of a key since a time; null if there is none. */
export const findLastAuditedAction = (db: Queryable, id: string, since: Date) =>
  db.maybeOne(actionRow`
    select action, status, created_at as at from audit_entries
    where principal_type = 'api_key' and principal_id = ${id} and created_at >= ${since.toISOString()}::timestamptz
    order by created_at desc, id desc limit 1`)

/** Whether the project exists; prevents its deletion until the transaction ends. */
export const lockProject = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOneFirst(idStatement`select id from projects where id = ${id} for key share`)) !== null
