import { sqlStateOf } from '../db/database-errors.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { readBatches, rowsOf } from './replication.ts'

/** The rows of home that its cells have copies of: how they are first copied, and compared. */

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
    const query = { text: `select to_jsonb(t) as row from ${table} t where ${copiedRows(of)}` }
    for await (const batch of readBatches(home.client, query, { size: BATCH_ROWS })) {
      const rows = batch.map(({ row }) => row)
      const columns = (await columnsAt(cell, table)).filter(name => name in rows[0]).map(quotedName)
      await rowsAt(
        cell,
        `insert into ${table} (${columns.join(', ')})
         select ${columns.join(', ')} from jsonb_populate_recordset(null::${table}, $1::jsonb)
         on conflict (${keys.get(table)}) do update set ${columns.map(name => `${name} = excluded.${name}`).join(', ')}`,
        [JSON.stringify(rows)],
      )
    }
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

/** Columns that each cell writes for the use of a key or grant in it. */
const OF_EACH_CELL = new Set(['last_used_at', 'browser_used_at'])

/** Condition of the rows of a table that are compared: replication brings the policies of keys that the cell does not have. */
const comparedRows = (of: HomeTable): string =>
  of.table === 'project_key_policies'
    ? 'exists (select from project_keys k where k.id = t.key_id and k.project_id is null)'
    : copiedRows(of)

/** Rows of a table by their keys, as hashes of the columns that both sides have. */
type Comparison = { of: HomeTable; key: string; hash: string }

const hashOf = (text: string): string => `encode(sha256(convert_to(${text}, 'UTF8')), 'hex')`

async function comparisonOf(home: Side, cell: Side, of: HomeTable): Promise<Comparison> {
  const inCell = await columnsAt(cell, of.table)
  const columns = (await columnsAt(home, of.table)).filter(name => inCell.includes(name) && !OF_EACH_CELL.has(name))
  return {
    of,
    key: `jsonb_build_array(${await primaryKey(cell, of.table)})::text`,
    hash: hashOf(`jsonb_build_array(${columns.map(quotedName).join(', ')})::text`),
  }
}

async function hashAt(side: Side, { of, hash }: Comparison): Promise<string> {
  const [row] = await rowsAt(
    side,
    `select ${hashOf(`coalesce(string_agg(hash, '' order by hash collate "C"), '')`)} as hash
     from (select ${hash} as hash from ${of.table} t where ${comparedRows(of)}) h`,
  )
  return row.hash
}

async function rowHashesAt(side: Side, { of, key, hash }: Comparison): Promise<ReadonlyMap<string, string>> {
  const rows = await rowsAt(side, `select ${key} as key, ${hash} as hash from ${of.table} t where ${comparedRows(of)}`)
  return new Map(rows.map(row => [row.key, row.hash]))
}

/**
 * Returns the tables whose copies in a cell differ from the rows at home, null if `catchUp` is false.
 * @param catchUp waits until the cell has the commits of home, false if they are on the way; without it both sides are one snapshot
 */
export async function findDifferences(
  home: Side,
  cell: Side,
  catchUp?: () => Promise<boolean>,
): Promise<string[] | null> {
  for (const { client } of [home, cell]) await client.query(`set time zone 'UTC'`)
  const suspects: { comparison: Comparison; before: ReadonlyMap<string, string> }[] = []
  for (const of of HOME_TABLES) {
    const comparison = await comparisonOf(home, cell, of)
    if ((await hashAt(home, comparison)) !== (await hashAt(cell, comparison)))
      suspects.push({ comparison, before: await rowHashesAt(home, comparison) })
  }
  if (suspects.length > 0 && catchUp && !(await catchUp())) return null
  const found: string[] = []
  for (const { comparison, before } of suspects) {
    const copies = await rowHashesAt(cell, comparison)
    // A row that has changed since may be on the way. Read after the copies, which could otherwise be newer.
    const rows = catchUp ? await rowHashesAt(home, comparison) : before
    const isUnchanged = (key: string) => rows.get(key) === before.get(key)
    const missing = [...rows.keys()].filter(key => !copies.has(key) && isUnchanged(key))
    const extra = [...copies.keys()].filter(key => !rows.has(key) && isUnchanged(key))
    const differs = [...rows].some(([key, hash]) => copies.has(key) && copies.get(key) !== hash && isUnchanged(key))
    const { table } = comparison.of
    if (
      differs ||
      (await mayBeMissing(home, cell, table, idsOf(missing))) < missing.length ||
      (await mayRemain(cell, table, idsOf(extra))) < extra.length
    )
      found.push(table)
  }
  return found
}

const idsOf = (keys: readonly string[]): string[] => keys.map(key => JSON.parse(key)[0])

/** Returns how many rows a cell may lack: it deletes the grants of a project with the project, before home does. */
async function mayBeMissing(home: Side, cell: Side, table: string, ids: readonly string[]): Promise<number> {
  if (table !== 'oauth_grants' || ids.length === 0) return 0
  const grants = await rowsAt(
    home,
    'select project_id from oauth_grants where id = any ($1) and project_id is not null',
    [ids],
  )
  const projects = grants.map(({ project_id }) => project_id)
  const present = await rowsAt(cell, 'select id from projects where id = any ($1)', [projects])
  const there = new Set(present.map(({ id }) => id))
  return projects.filter(id => !there.has(id)).length
}

/** Returns how many rows that home does not have remain in a cell because rows of the cell require them. */
async function mayRemain(cell: Side, table: string, ids: readonly string[]): Promise<number> {
  if (ids.length === 0) return 0
  const references = await rowsAt(
    cell,
    `select conrelid::regclass::text as name, quote_ident(attname) as column_name
     from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
     where contype = 'f' and confrelid = $1::regclass and confdeltype in ('a', 'r')`,
    [table],
  )
  const required = new Set<string>()
  for (const { name, column_name } of references)
    for (const { id } of await rowsAt(
      cell,
      `select distinct ${column_name} as id from ${name} where ${column_name} = any ($1)`,
      [ids],
    ))
      required.add(id)
  return required.size
}
