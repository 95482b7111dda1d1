import { z } from 'zod'
import { type Queryable, sql, statement } from '../../core/db/sql.ts'
import type { SealedColumn } from '../../core/secrets/sealed.ts'
import { type SecretRow, secretKind } from './model.ts'

export const insertSecret = (
  db: Queryable,
  values: { id: string; project_id: string; name: string; sealed_value: string },
): Promise<SecretRow> =>
  db.one(secretKind.sql`
    insert into secrets as t (id, project_id, name, sealed_value)
    values (${values.id}, ${values.project_id}, ${values.name}, ${values.sealed_value})
    returning ${secretKind.columns}`)

/** Writes the name and a new value; the one that it replaces is kept for a rollback. The caller holds the row. */
export const replaceValue = (
  db: Queryable,
  id: string,
  { name, sealed_value }: { name: string; sealed_value: string },
  rollbackHours: number,
): Promise<SecretRow> =>
  db.one(secretKind.sql`
    update secrets t set name = ${name}, sealed_value = ${sealed_value}, previous_sealed_value = t.sealed_value,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id}
    returning ${secretKind.columns}`)

/** Exchanges the value and the one before it, in one statement; null without a kept value or a secret. */
export const rollbackSecret = (db: Queryable, id: string, rollbackHours: number): Promise<SecretRow | null> =>
  db.maybeOne(secretKind.sql`
    update secrets t set sealed_value = t.previous_sealed_value, previous_sealed_value = t.sealed_value,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id} and t.previous_sealed_value is not null and t.previous_until > now()
    returning ${secretKind.columns}`)

/** Drops replaced values whose time to be restored is over. @returns how many */
export const dropReplacedValues = async (db: Queryable): Promise<number> =>
  (
    await db.query(statement`
      update secrets set previous_sealed_value = null, previous_until = null where previous_until <= now()`)
  ).rowCount

const sealedValue = sql.type(z.object({ id: z.string(), sealed_value: z.string() }))

/** Sealed values of secrets of a project, in one statement whatever their number. */
export const sealedValues = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly { id: string; sealed_value: string }[]> =>
  db.any(sealedValue`
    select id, sealed_value from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})`)

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
  db.query(statement`
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
