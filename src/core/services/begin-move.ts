import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { openPool } from '../db/pool.ts'
import { CellRefusal, isSameSchema, requireEmpty } from './cell-directory.ts'
import { type CellMove, type CellSchemas, insertMove } from './cell-moves.ts'
import { migrateCell } from './migrate-cells.ts'
import { copyMonths, findMismatches, listTables, planLayout, schemasOf } from './move-target.ts'
import { type MovableCell, openMoveSession } from './moving-cell.ts'
import { areInOneDatabase, rowsOf, schemaOf } from './replication.ts'

/** The begin of the move of a cell: checks of source and target, and the record of the move. */

/** @throws CellRefusal if the server of a cell does not permit logical replication */
export async function requireLogicalLog(source: DatabaseClient): Promise<void> {
  const [{ wal_level }] = await rowsOf(source, `select current_setting('wal_level') as wal_level`)
  if (wal_level !== 'logical')
    throw new CellRefusal(`the server of the cell has wal_level = ${wal_level}; a move requires wal_level = logical`)
}

/** @throws CellRefusal if a target does not answer */
export async function requireAnswer(url: string): Promise<void> {
  const target = await openMoveSession(url).catch(error => {
    throw new CellRefusal(`the database ${addressOf(url)} does not answer: ${error.message}`)
  })
  await target.end()
}

/**
 * Migrates the target of a URL and records the move.
 * @throws CellRefusal if the target does not permit the move
 */
export async function beginMove(
  home: Services,
  cell: MovableCell,
  source: DatabaseClient,
  url: string,
): Promise<CellMove> {
  const { name, state } = cell
  await withPools([cell.url, url], async (from, to) => {
    const address = addressOf(url)
    if (await isSameSchema(from, to)) throw new CellRefusal(`cell ${name} is in the database ${address}`)
    // Rows of the cell in another database are a backup, or were left by a move.
    await requireEmpty(home, to, '')
  })
  const target = await openMoveSession(url)
  try {
    if (await areInOneDatabase(source, target))
      throw new CellRefusal(
        `cell ${name} is in a schema of the database ${addressOf(url)}; a move requires another one`,
      )
    const schemas = await schemasOf(source)
    await requireFreeSchemas(target, schemas)
    await migrateCell(home.config, url)
    await copyMonths(source, target)
    const tables = await listTables(target, Object.values(await schemasOf(target)))
    const mismatches = findMismatches(await listTables(source, Object.values(schemas)), tables)
    if (mismatches.length > 0) throw new CellRefusal(`${mismatches[0]}: run muster migrate before the move`)
    const [{ fence }] = await rowsOf(source, `select to_char(now() at time zone 'utc', 'YYYYMMDDHH24MISS') as fence`)
    const move: CellMove = {
      cell: name,
      url,
      state: state === 'closed' ? 'closed' : 'open',
      source: schemas,
      fence,
      layout: await planLayout(target, tables, schemas),
    }
    await insertMove(home, move)
    return move
  } finally {
    await target.end()
  }
}

/** Requires that no other tables have the schemas of the source in the target. */
async function requireFreeSchemas(target: DatabaseClient, source: CellSchemas): Promise<void> {
  const own = new Set([await schemaOf(target), (await schemasOf(target)).queues])
  for (const schema of new Set([source.tables, source.queues])) {
    if (own.has(schema)) continue
    const [{ count }] = await rowsOf(
      target,
      `select count(*)::int as count from pg_class where relnamespace = to_regnamespace($1) and relkind in ('r', 'p')`,
      [schema],
    )
    if (count > 0)
      throw new CellRefusal(
        `the target has a schema ${schema} with tables; logical replication requires it for the tables of the cell`,
      )
  }
}

async function withPools<T>(
  [one, other]: [string, string],
  work: (one: Services['pool'], other: Services['pool']) => Promise<T>,
): Promise<T> {
  const open = (databaseUrl: string) => openPool({ databaseUrl, connections: 1, applicationName: 'muster move' })
  const first = await open(one)
  try {
    const second = await open(other)
    try {
      return await work(first, second)
    } finally {
      await second.end()
    }
  } finally {
    await first.end()
  }
}
