import { type Queryable, sql } from '../../core/db/sql.ts'
import type { SealedColumn } from '../../core/secrets/sealed.ts'
import { type SecretRow, secret } from './model.ts'

export const insertSecret = (
  db: Queryable,
  values: { id: string; project_id: string; name: string; sealed_value: string },
): Promise<SecretRow> =>
  db.one(sql.unsafe`
    insert into secrets as t (id, project_id, name, sealed_value)
    values (${values.id}, ${values.project_id}, ${values.name}, ${values.sealed_value})
    returning ${secret.columns}`) as Promise<SecretRow>

/** Writes a name, a value or both in one statement; a replaced value is kept for a rollback. Null when the secret is gone. */
export function updateSecret(
  db: Queryable,
  id: string,
  patch: { name?: string; sealed_value?: string },
  rollbackHours: number,
): Promise<SecretRow | null> {
  const sets = [sql.fragment`updated_at = now()`]
  if (patch.name !== undefined) sets.push(sql.fragment`name = ${patch.name}`)
  if (patch.sealed_value !== undefined)
    sets.push(sql.fragment`previous_sealed_value = t.sealed_value,
      previous_until = now() + make_interval(hours => ${rollbackHours}),
      sealed_value = ${patch.sealed_value}, value_updated_at = now()`)
  return db.maybeOne(
    sql.unsafe`update secrets t set ${sql.join(sets, sql.fragment`, `)} where t.id = ${id} returning ${secret.columns}`,
  ) as Promise<SecretRow | null>
}

/** Exchanges the value and the one before it, in one statement; null without a kept value or a secret. */
export const rollbackSecret = (db: Queryable, id: string, rollbackHours: number): Promise<SecretRow | null> =>
  db.maybeOne(sql.unsafe`
    update secrets t set sealed_value = t.previous_sealed_value, previous_sealed_value = t.sealed_value,
      previous_until = now() + make_interval(hours => ${rollbackHours}), value_updated_at = now(), updated_at = now()
    where t.id = ${id} and t.previous_sealed_value is not null and t.previous_until > now()
    returning ${secret.columns}`) as Promise<SecretRow | null>

/** Drops replaced values whose time to be rolled back to is over. */
export const dropReplacedValues = async (db: Queryable): Promise<number> =>
  (
    await db.query(sql.unsafe`
      update secrets set previous_sealed_value = null, previous_until = null where previous_until <= now()`)
  ).rowCount

export const deleteSecret = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`delete from secrets where id = ${id}`)

/** Sealed values of secrets of a project, in one statement whatever their number. */
export const sealedValues = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<readonly { id: string; sealed_value: string }[]> =>
  db.any(sql.unsafe`
    select id, sealed_value from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})`) as Promise<
    readonly { id: string; sealed_value: string }[]
  >

/** Which of the ids are secrets of the project, held against deletion to the end of the transaction. */
export const lockSecrets = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(sql.unsafe`
    select id from secrets where project_id = ${projectId} and id = any(${sql.array(ids, 'text')})
    order by id for key share`) as Promise<readonly string[]>

export type SealedRow = { id: string; project_id: string | null; sealed: string }

/** The next rows after `after` that are not sealed under `keyId`. Rows that others hold are passed over. */
export const lockForeignRows = (
  db: Queryable,
  { table, column, id, project }: SealedColumn,
  keyId: string,
  after: string,
  limit: number,
): Promise<readonly SealedRow[]> => {
  const text = sql.identifier([column])
  return db.any(sql.unsafe`
    select ${id} as id, ${project} as project_id, ${text} as sealed from ${sql.identifier([table])}
    where ${text} is not null and split_part(${text}, '.', 2) <> ${keyId} and ${id} > ${after}
    order by ${id} limit ${limit} for update skip locked`) as Promise<readonly SealedRow[]>
}

/** Writes resealed values of rows whose locks the caller holds. */
export const writeSealed = (
  db: Queryable,
  { table, column, id }: SealedColumn,
  rows: readonly { id: string; sealed: string }[],
): Promise<unknown> =>
  db.query(sql.unsafe`
    update ${sql.identifier([table])} set ${sql.identifier([column])} = resealed.sealed
    from ${sql.unnest(
      rows.map(row => [row.id, row.sealed]),
      ['text', 'text'],
    )} as resealed(row_id, sealed)
    where ${id} = resealed.row_id`)

/** How many values of a column each key sealed. Reads the whole table. */
export const countByKey = (
  db: Queryable,
  { table, column }: SealedColumn,
): Promise<readonly { key_id: string; count: number }[]> => {
  const text = sql.identifier([column])
  return db.any(sql.unsafe`
    select split_part(${text}, '.', 2) as key_id, count(*) as count from ${sql.identifier([table])}
    where ${text} is not null group by 1 order by 1`) as Promise<readonly { key_id: string; count: number }[]>
}
