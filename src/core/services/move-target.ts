import type { DatabaseClient } from '../db/pg-client.ts'
import type { CellSchemas, TargetLayout } from './cell-moves.ts'
import { HOME_TABLES } from './copied-rows.ts'
import { FORMATS, insertTexts, inTransactionOf, readBatches, rowsOf } from './replication.ts'

/**
 * The tables of a cell that is moved, at its source and in its target. Logical replication finds tables by schema and name, so the
 * tables of the target are in the schemas of the source until the source refuses writes.
 */

/** A table; `columns` describes its columns, so that two databases can be compared. */
export type CellTable = { schema: string; name: string; columns: string; isPartitioned: boolean; isLogged: boolean }

/** Returns the name of a table or sequence for statements. */
export const qualifiedName = ({ schema, name }: { schema: string; name: string }): string => `"${schema}"."${name}"`

/** Lists the tables in schemas, without tables of extensions. */
export async function listTables(client: DatabaseClient, schemas: readonly string[]): Promise<CellTable[]> {
  const rows = await rowsOf(
    client,
    `select n.nspname::text as schema, c.relname::text as name, c.relkind = 'p' as is_partitioned,
       c.relpersistence = 'p' as is_logged,
       (select string_agg(concat_ws(' ', attname, regexp_replace(format_type(atttypid, atttypmod), '^[a-z_0-9]+[.]', ''), attgenerated),
          ', ' order by attname)
        from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped) as columns
     from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = any ($1) and c.relkind in ('r', 'p')
       and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
     order by c.relname`,
    [schemas],
  )
  return rows.map(({ schema, name, columns, is_partitioned, is_logged }) => ({
    schema,
    name,
    columns,
    isPartitioned: is_partitioned,
    isLogged: is_logged,
  }))
}

/** Returns the schemas of the tables and queues of a session. */
export async function schemasOf(client: DatabaseClient): Promise<CellSchemas> {
  const [{ tables, queues }] = await rowsOf(
    client,
    `select current_schema()::text as tables,
       (select relnamespace::regnamespace::text from pg_class where oid = to_regclass('pgboss.queue')) as queues`,
  )
  return { tables, queues }
}

const listMonths = (client: DatabaseClient) =>
  rowsOf(
    client,
    `select p.relname::text as parent, c.relname::text as name, pg_get_expr(c.relpartbound, c.oid) as bound
     from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
     where c.relnamespace = current_schema()::regnamespace and to_regclass(p.relname || '_rest') is not null order by 2`,
  ) as Promise<{ parent: string; name: string; bound: string }[]>

/** Gives an empty target the partitions of its source: logical replication is by partition. */
export async function copyMonths(source: DatabaseClient, target: DatabaseClient): Promise<void> {
  const [wanted, present] = [await listMonths(source), await listMonths(target)]
  const isIn = (months: typeof wanted, { name, bound }: (typeof wanted)[number]) =>
    months.some(month => month.name === name && month.bound === bound)
  await inTransactionOf(target, async () => {
    const parents = new Set(wanted.map(({ parent }) => parent))
    for (const month of present)
      if (parents.has(month.parent) && !isIn(wanted, month)) await target.query(`drop table "${month.name}"`)
    for (const month of wanted) {
      if (isIn(present, month)) continue
      await target.query(`create table "${month.name}" partition of ${month.parent} ${month.bound}`)
      await target.query('select add_truncate_triggers($1, $2)', [month.parent, month.name])
    }
  })
}

/** Returns what keeps the tables of a source from being replicated to a target, as sentences. */
export function findMismatches(source: readonly CellTable[], target: readonly CellTable[]): string[] {
  const there = new Map(target.map(table => [table.name, table]))
  return source.flatMap(({ name, columns, isLogged }) => {
    const other = there.get(name)
    if (!other) return [`the target lacks the table ${name}`]
    if (other.columns !== columns) return [`the table ${name} has other columns in the target`]
    return other.isLogged === isLogged ? [] : [`the table ${name} is logged in one database only`]
  })
}

const listSchemas = async (client: DatabaseClient): Promise<string[]> =>
  (await rowsOf(client, 'select nspname::text as name from pg_namespace')).map(({ name }) => name)

/** Returns the layout of a migrated target whose tables will be in the schemas of a source. */
export async function planLayout(
  client: DatabaseClient,
  tables: readonly CellTable[],
  source: CellSchemas,
): Promise<TargetLayout> {
  const present = await listSchemas(client)
  return {
    schemas: Object.fromEntries(tables.map(({ name, schema }) => [name, schema])),
    created: [...new Set([source.tables, source.queues])].filter(schema => !present.includes(schema)),
  }
}

/** Moves tables to other schemas. */
async function setSchemas(
  client: DatabaseClient,
  tables: readonly CellTable[],
  schemaFor: (name: string) => string | undefined,
): Promise<void> {
  for (const table of tables) {
    const schema = schemaFor(table.name)
    if (schema !== undefined && schema !== table.schema)
      await client.query(`alter table ${qualifiedName(table)} set schema "${schema}"`)
  }
}

/**
 * Prepares a target to receive rows: its tables are empty, in the schemas of the source, and no trigger fires for replicated rows.
 * The copies of rows of home arrive with the others, and are compared with home at the end.
 */
export async function prepareTarget(
  client: DatabaseClient,
  source: readonly CellTable[],
  { schemas, created }: TargetLayout,
): Promise<void> {
  const schemaAtSource = new Map(source.map(({ name, schema }) => [name, schema]))
  await inTransactionOf(client, async () => {
    for (const schema of created) await client.query(`create schema "${schema}"`)
    await setSchemas(client, await tablesOf(client, { schemas, created }), name => schemaAtSource.get(name))
    await emptyTables(client, await tablesOf(client, { schemas, created }))
    for (const table of await tablesOf(client, { schemas, created }))
      if (isHomeTable(table)) await client.query(`alter table ${qualifiedName(table)} disable trigger copies_received`)
  })
}

const homeTables: ReadonlySet<string> = new Set(HOME_TABLES.map(({ table }) => table))

const isHomeTable = ({ name }: CellTable): boolean => homeTables.has(name)

/** Lists the tables of a target, in whichever of its schemas they are. */
export async function tablesOf(client: DatabaseClient, { schemas, created }: TargetLayout): Promise<CellTable[]> {
  const tables = await listTables(client, [...new Set([...Object.values(schemas), ...created])])
  return tables.filter(({ name }) => name in schemas)
}

/** Removes all rows. Triggers that keep tables from being truncated are disabled in the transaction only. */
async function emptyTables(client: DatabaseClient, tables: readonly CellTable[]): Promise<void> {
  const names = tables.map(qualifiedName)
  const guards = await rowsOf(
    client,
    `select tgrelid::regclass::text as of, quote_ident(tgname) as name from pg_trigger
     where tgtype & 32 > 0 and not tgisinternal and tgenabled <> 'D' and tgrelid = any ($1::regclass[])`,
    [names],
  )
  for (const { of, name } of guards) await client.query(`alter table ${of} disable trigger ${name}`)
  await client.query(`truncate ${names.join(', ')} restart identity`)
  for (const { of, name } of guards) await client.query(`alter table ${of} enable trigger ${name}`)
}

/** Moves the tables of a target back to its own schemas, and lets its triggers receive copies. Can be repeated. */
export async function restoreTarget(
  client: DatabaseClient,
  layout: TargetLayout,
  { isEmptied = false }: { isEmptied?: boolean } = {},
): Promise<void> {
  if (isEmptied) await emptyTables(client, await tablesOf(client, layout))
  await setSchemas(client, await tablesOf(client, layout), name => layout.schemas[name])
  for (const table of await tablesOf(client, layout))
    if (isHomeTable(table))
      await client.query(`alter table ${qualifiedName(table)} enable replica trigger copies_received`)
  for (const schema of layout.created) await client.query(`drop schema if exists "${schema}"`)
}

const FIRST_ROWS = 10
const MOST_ROWS = 200
const BATCH_CHARACTERS = 4_000_000

/** Copies the rows of a table that is not replicated. */
export async function copyTable(
  source: DatabaseClient,
  target: DatabaseClient,
  from: CellTable,
  to: CellTable,
): Promise<void> {
  const columns = await rowsOf(
    target,
    `select quote_ident(attname) as name from pg_attribute
     where attrelid = $1::regclass and attnum > 0 and not attisdropped and attgenerated = ''`,
    [qualifiedName(to)],
  )
  const names = columns.map(({ name }) => name as string)
  for (const session of [source, target]) await session.query(FORMATS)
  await inTransactionOf(source, async () => {
    const query = { text: `select t::text as row from ${qualifiedName(from)} t` }
    for await (const batch of readBatches(source, query, { size: FIRST_ROWS, sizeAfter: nextBatchSize }))
      await insertTexts(
        target,
        { table: qualifiedName(to), columns: names },
        batch.map(({ row }) => row),
      )
  })
}

/** Grows slowly, as large rows may follow small ones. */
function nextBatchSize(batch: readonly { row: string }[], size: number): number {
  const average = batch.reduce((sum, { row }) => sum + row.length, 0) / batch.length
  return Math.max(1, Math.min(2 * size, MOST_ROWS, Math.floor(BATCH_CHARACTERS / average)))
}

/** Sets the sequences of a target to the values of the source. */
export async function copySequences(
  source: DatabaseClient,
  target: DatabaseClient,
  schemas: { source: readonly string[]; target: readonly string[] },
): Promise<void> {
  const list = (client: DatabaseClient, names: readonly string[]) =>
    rowsOf(
      client,
      `select n.nspname::text as schema, c.relname::text as name from pg_class c
       join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'S' and n.nspname = any ($1)`,
      [names],
    )
  const there = new Map((await list(target, schemas.target)).map(sequence => [sequence.name, qualifiedName(sequence)]))
  for (const sequence of await list(source, schemas.source)) {
    const [{ last_value, is_called }] = await rowsOf(
      source,
      `select last_value::text, is_called from ${qualifiedName(sequence)}`,
    )
    const name = there.get(sequence.name)
    if (name) await target.query('select setval($1::regclass, $2::bigint, $3)', [name, last_value, is_called])
  }
}
