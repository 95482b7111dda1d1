import { z } from 'zod'
import { jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { SealedColumn } from '../../core/secrets/sealed.ts'
import { type SecretRow, SecretSource, secretKind } from './model.ts'

/** What a secret's value is: sealed, or where it lies. */
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

/** Writes a new value beside the other fields; the one that it replaces is kept for a rollback. The caller holds the row. */
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

/** Exchanges the value and the one before it, in one statement; null without a kept value or a secret. */
export const rollbackSecret = (db: Queryable, id: string, rollbackHours: number): Promise<SecretRow | null> =>
  db.maybeOne(secretKind.sql`
    update secrets t set sealed_value = t.previous_sealed_value, source = t.previous_source,
      previous_sealed_value = t.sealed_value, previous_source = t.source,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id} and t.previous_until > now()
    returning ${secretKind.columns}`)

/** Drops replaced values whose time to be restored is over. @returns how many */
export const dropReplacedValues = async (db: Queryable): Promise<number> =>
  (
    await db.query(voidStatement`
      update secrets set previous_sealed_value = null, previous_source = null, previous_until = null
      where previous_until <= now()`)
  ).rowCount

const StoredRow = z.object({ id: z.string(), sealed_value: z.string().nullable(), source: SecretSource.nullable() })
const storedRow = sql.type(StoredRow)

/** Values of secrets of a project as they are stored, in one statement whatever their number. */
export const storedValues = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly z.output<typeof StoredRow>[]> =>
  db.any(storedRow`
    select id, sealed_value, source from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})`)

const found = sql.type(z.object({ id: z.string() }))

/** Which of the ids are secrets of the project, kept from being deleted until the transaction ends. */
export const referencedSecrets = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly string[]> =>
  db.anyFirst(found`
    select id from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})
    order by id for key share`)

const ExpiringSecret = z.object({ id: z.string(), project_id: z.string(), name: z.string(), expires_at: z.string() })
export type ExpiringSecret = z.output<typeof ExpiringSecret>
const expiringSecret = sql.type(ExpiringSecret)

/**
 * Takes up to `limit` secrets that expire before a time and whose date was not reported (index secrets_expiring), and
 * marks it as reported: whoever commits reports it, once.
 */
export const claimExpiring = (db: Queryable, before: Date, limit: number): Promise<readonly ExpiringSecret[]> =>
  db.any(expiringSecret`
    update secrets t set expiry_reported_for = t.expires_at where t.id in (
      select id from secrets where expires_at < ${before.toISOString()}::timestamptz and expires_at is not null
        and expiry_reported_for is distinct from expires_at
      order by expires_at limit ${limit} for no key update skip locked)
    returning t.id, t.project_id, t.name, t.expires_at`)

const sealedRow = sql.type(z.object({ id: z.string(), project_id: z.string().nullable(), sealed: z.string() }))

/** The next rows after `after` that are not sealed under `keyId`. Rows that others hold are skipped. */
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

/** Writes resealed values of rows whose locks the caller holds. */
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

const keyCount = sql.type(z.object({ key_id: z.string(), count: z.int() }))

/** How many values of a column each key sealed. Reads the whole table. */
export const countByKey = (db: Queryable, { table, column }: SealedColumn) => {
  const text = sql.identifier([column])
  return db.any(keyCount`
    select split_part(${text}, '.', 2) as key_id, count(*) as count from ${sql.identifier([table])}
    where ${text} is not null group by 1 order by 1`)
}
