import { z } from 'zod'
import type { SealedColumn } from '#core/db/sealed.ts'
import { idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type SecretRow, SecretSource, secretKind } from './model.ts'

/** Stored value of a secret: sealed, or its location in an external store. */
export type StoredValue = { sealed_value: string; source: null } | { sealed_value: null; source: SecretSource }

export const insertSecret = (
  db: Queryable,
  values: { id: string; project_id: string; name: string; expires_at: string | null } & StoredValue,
): Promise<SecretRow> =>
  db.one(secretKind.sql`
    insert into secrets as t (id, project_id, name, sealed_value, source, expires_at)
    values (${values.id}, ${values.project_id}, ${values.name}, ${values.sealed_value}, ${jsonb(values.source)},
      ${values.expires_at})
    returning ${secretKind.columns}`)

/** Updates a secret including its value; the replaced value is kept for a rollback. The caller holds the row lock. */
export const replaceValue = (
  db: Queryable,
  id: string,
  values: { name: string; expires_at: string | null } & StoredValue,
  rollbackHours: number,
): Promise<SecretRow> =>
  db.one(secretKind.sql`
    update secrets t set name = ${values.name}, expires_at = ${values.expires_at},
      sealed_value = ${values.sealed_value}, source = ${jsonb(values.source)},
      previous_sealed_value = t.sealed_value, previous_source = t.source,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id}
    returning ${secretKind.columns}`)

/** Swaps the current and the previous value in one statement; null if there is no previous value or no secret. */
export const rollbackSecret = (db: Queryable, id: string, rollbackHours: number): Promise<SecretRow | null> =>
  db.maybeOne(secretKind.sql`
    update secrets t set sealed_value = t.previous_sealed_value, source = t.previous_source,
      previous_sealed_value = t.sealed_value, previous_source = t.source,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id} and t.previous_until > now()
    returning ${secretKind.columns}`)

/** Deletes previous values whose rollback time has passed. @returns their number */
export const dropReplacedValues = async (db: Queryable): Promise<number> =>
  (
    await db.query(voidStatement`
      update secrets set previous_sealed_value = null, previous_source = null, previous_until = null
      where previous_until <= now()`)
  ).rowCount

const StoredRow = z.object({ id: z.string(), sealed_value: z.string().nullable(), source: SecretSource.nullable() })
const storedRow = sql.type(StoredRow)

const SealedRow = z.object({ id: z.string(), sealed_value: z.string() })

/** Lists the newest secrets of a project whose values are in the database, up to `limit`. */
export const listSealedValues = (
  db: Queryable,
  projectId: string,
  limit: number,
): Promise<readonly z.output<typeof SealedRow>[]> =>
  db.any(sql.type(SealedRow)`
    select id, sealed_value from secrets where project_id = ${projectId} and sealed_value is not null
    order by created_at desc, id desc limit ${limit}`)

/** Returns the stored values of a project's secrets, in one statement regardless of their number. */
export const listStoredValues = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly z.output<typeof StoredRow>[]> =>
  db.any(storedRow`
    select id, sealed_value, source from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})`)

/** Returns the IDs that are secrets of the project, and prevents their deletion until the transaction ends. */
export const lockReferencedSecrets = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})
    order by id for key share`)

const ExpiringSecret = z.object({ id: z.string(), project_id: z.string(), name: z.string(), expires_at: z.string() })
export type ExpiringSecret = z.output<typeof ExpiringSecret>
const expiringSecretRow = sql.type(ExpiringSecret)

/**
 * Claims up to `limit` secrets that expire before a time and whose expiry was not reported yet, and marks it as
 * reported, so that exactly one transaction reports it. Index secrets_expiring.
 */
export const claimExpiring = (db: Queryable, before: Date, limit: number): Promise<readonly ExpiringSecret[]> =>
  db.any(expiringSecretRow`
    update secrets t set expiry_reported_for = t.expires_at where t.id in (
      select id from secrets where expires_at < ${before.toISOString()}::timestamptz and expires_at is not null
        and expiry_reported_for is distinct from expires_at
      order by expires_at limit ${limit} for no key update skip locked)
    returning t.id, t.project_id, t.name, t.expires_at`)

const sealedRow = sql.type(z.object({ id: z.string(), project_id: z.string().nullable(), sealed: z.string() }))

/**
 * Locks the next rows after `after` that are not sealed with `keyId`; rows locked by other transactions are skipped.
 */
export const lockForeignRows = (
  db: Queryable,
  { table, column, id, project }: SealedColumn,
  keyId: string,
  after: string,
  limit: number,
) => {
  const text = sql.identifier([column])
  return db.any(sealedRow`
    select ${id} as id, ${project} as project_id, ${text} as sealed from ${sql.identifier([table])}
    where ${text} is not null and split_part(${text}, '.', 2) <> ${keyId} and ${id} > ${after}
    order by ${id} limit ${limit} for update skip locked`)
}

/** Writes re-encrypted values; the caller holds the row locks. */
export const writeSealed = (
  db: Queryable,
  { table, column, id }: SealedColumn,
  rows: readonly { id: string; sealed: string }[],
) =>
  db.query(voidStatement`
    update ${sql.identifier([table])} set ${sql.identifier([column])} = resealed.sealed
    from ${sql.unnest(
      rows.map(row => [row.id, row.sealed]),
      ['text', 'text'],
    )} as resealed(row_id, sealed)
    where ${id} = resealed.row_id`)

const keyCountRow = sql.type(z.object({ key_id: z.string(), count: z.int() }))

/** Counts the values of a column per key. Reads the whole table. */
export const countByKey = (db: Queryable, { table, column }: SealedColumn) => {
  const text = sql.identifier([column])
  return db.any(keyCountRow`
    select split_part(${text}, '.', 2) as key_id, count(*) as count from ${sql.identifier([table])}
    where ${text} is not null group by 1 order by 1`)
}
