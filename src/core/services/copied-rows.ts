import { sqlStateOf } from '../db/database-errors.ts'
import type { DatabaseClient } from '../db/pg-client.ts'

/** The rows of home that its cells have copies of: how all are copied at once, and compared. */

/**
 * Tables at home that are copied, each after the tables that it references. `unbound`: only rows without a project, as rows of
 * projects are in their cells.
 */
export const HOME_TABLES = [
  { table: 'users' },
  { table: 'policies' },
  { table: 'user_policies' },
  { table: 'project_keys', unbound: true },
  { table: 'project_key_policies' },
  { table: 'oauth_grants' },
  { table: 'prices', unbound: true },
] as const

export type HomeTable = { table: string; unbound?: boolean }

/** Condition of the rows of a table that are copied, at home, and of the copies in a cell. */
const copiedRows = ({ table, unbound }: HomeTable): string => {
  if (unbound) return 't.project_id is null'
  return table === 'project_key_policies'
    ? 'not exists (select from project_keys k where k.id = t.key_id and k.project_id is not null)'
    : 'true'
}

export const rowsOf = async (client: DatabaseClient, text: string, values: unknown[] = []): Promise<any[]> =>
  (await client.query(text, values)).rows

/** A session; `enter` makes the schema of home or of the cell the current one. */
export type Side = { client: DatabaseClient; enter(): Promise<unknown> }

async function rowsAt({ client, enter }: Side, text: string, values: unknown[] = []): Promise<any[]> {
  await enter()
  return rowsOf(client, text, values)
}

/** Names of the columns of the primary key, for statements. */
async function primaryKey(side: Side, table: string): Promise<string> {
  const [{ columns }] = await rowsAt(
    side,
    `select string_agg(quote_ident(attname), ', ') as columns from pg_index
     join pg_attribute on attrelid = indrelid and attnum = any (indkey) where indrelid = $1::regclass and indisprimary`,
    [table],
  )
  return columns
}

/** Names of the columns of a table, for statements. */
const columnsAt = async (side: Side, table: string): Promise<string[]> =>
  (
    await rowsAt(
      side,
      `select attname::text as name from pg_attribute
       where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attname`,
      [table],
    )
  ).map(({ name }) => name)

const BATCH_ROWS = 1000

const FOREIGN_KEY_VIOLATIONS = new Set<string | null>(['23503', '23001'])

/** Makes the copies in a cell equal to the rows at home, in transactions. A policy that rows of the cell reference remains. */
export async function copyRows(home: Side, cell: Side): Promise<void> {
  const keys = new Map<string, string>()
  for (const of of [...HOME_TABLES].reverse()) {
    const { table } = of
    const columns = await primaryKey(cell, table)
    keys.set(table, columns)
    const [{ present }] = await rowsAt(
      home,
      `select coalesce(json_agg(json_build_array(${columns})), '[]')::text as present from ${table} t where ${copiedRows(of)}`,
    )
    const missing = await rowsAt(
      cell,
      `select ctid::text as place from ${table} t where ${copiedRows(of)}
       and not jsonb_build_array(${columns}) in (select jsonb_array_elements($1::jsonb))`,
      [present],
    )
    for (const { place } of missing) await deleteUnlessReferenced(cell, table, place)
  }
  // Names may have been exchanged.
  await rowsAt(cell, 'update users set username = id')
  for (const of of HOME_TABLES) {
    const { table } = of
    await home.enter()
    await home.client.query(
      `declare copied cursor for select to_jsonb(t) as row from ${table} t where ${copiedRows(of)}`,
    )
    for (;;) {
      const rows = (await rowsOf(home.client, `fetch ${BATCH_ROWS} from copied`)).map(({ row }) => row)
      if (rows.length === 0) break
      const columns = (await columnsAt(cell, table)).filter(name => name in rows[0]).map(quotedName)
      await rowsAt(
        cell,
        `insert into ${table} (${columns.join(', ')})
         select ${columns.join(', ')} from jsonb_populate_recordset(null::${table}, $1::jsonb)
         on conflict (${keys.get(table)}) do update set ${columns.map(name => `${name} = excluded.${name}`).join(', ')}`,
        [JSON.stringify(rows)],
      )
    }
    await home.client.query('close copied')
  }
}

const quotedName = (name: string): string => `"${name}"`

async function deleteUnlessReferenced({ client, enter }: Side, table: string, place: string): Promise<void> {
  await client.query('savepoint missing')
  await enter()
  try {
    await client.query(`delete from ${table} where ctid = $1::tid`, [place])
  } catch (error) {
    if (!FOREIGN_KEY_VIOLATIONS.has(sqlStateOf(error))) throw error
    await client.query('rollback to savepoint missing')
  }
  await client.query('release savepoint missing')
}
