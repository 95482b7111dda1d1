import { injectFault } from '../base/fault-injection.ts'
import { addressOf } from '../db/database-url.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { sealedForCell } from './cell-directory.ts'
import { endMove } from './cell-moves.ts'
import { dropSubscriptions, makeCopies, publicationOf } from './copies.ts'
import { copySequences, copyTable, listTables, qualifiedName, restoreTarget, tablesOf } from './move-target.ts'
import { fencedName, hasSubscription, type MovingCell, unpublishSource } from './moving-cell.ts'
import { untilAllReplayed } from './replicate-cell.ts'
import { dropSubscription, inTransactionOf, rowsOf } from './replication.ts'

/** The end of the move of a cell, whose source is fenced. */

/** A finished move. */
export type MovedCell = {
  name: string
  from: string
  to: string
  state: 'open' | 'closed'
  /** Time for which the cell took no requests, without the time that processes take to open it. */
  pause_ms: number
  tables: number
  /** Rows in the target, estimated by its statistics. */
  rows: number
  bytes: number
  /** Schemas that remain at the source, and can be dropped. */
  remaining_schemas: string[]
}

/** Completes the target, and makes it the database of the cell. Every step can be repeated. */
export async function switchToTarget(
  moving: MovingCell,
  homeSession: DatabaseClient,
  since: number,
): Promise<MovedCell> {
  const { home, cell, move, source, target, replica } = moving
  if (await hasSubscription(target, replica)) {
    // The target has all changes: the subscription is dropped only after them.
    await untilAllReplayed(moving)
    await dropSubscription(target, replica)
    await injectFault(home, 'move_replayed')
  }
  await unpublishSource(source, replica)
  const fenced = [...new Set(Object.values(move.source))].map(schema => fencedName(schema, move))
  await completeTarget(moving, fenced)
  await injectFault(home, 'move_completed')
  // From here the target has the rights of home, without those revoked meanwhile.
  await dropSubscriptions(source, await publicationOf(homeSession))
  await makeCopies(home, homeSession, { ...cell, url: move.url })
  await injectFault(home, 'move_copied')
  await moving.requireLock()
  await endMove(home, cell.name, move.url)
  const pauseMs = Math.round(performance.now() - since)
  return { ...(await describeTarget(moving)), pause_ms: pauseMs, remaining_schemas: fenced }
}

/** Gives the target the rows that are not replicated, its sequences, and its row in its own directory. */
async function completeTarget(
  { home, cell, move, source, target }: MovingCell,
  fenced: readonly string[],
): Promise<void> {
  const { layout, url } = move
  await inTransactionOf(target, async () => {
    await restoreTarget(target, layout)
    const own = await tablesOf(target, layout)
    for (const from of await listTables(source, fenced)) {
      const to = own.find(({ name }) => name === from.name)
      if (from.isLogged || !to) continue
      await target.query(`truncate ${qualifiedName(to)}`)
      await copyTable(source, target, from, to)
    }
    await copySequences(source, target, { source: fenced, target: [...new Set(Object.values(layout.schemas))] })
    await target.query(
      `insert into cells (name, number, url) values ($1, $2, $3)
       on conflict (name) do update set url = excluded.url, updated_at = now()`,
      [cell.name, cell.number, home.secrets.seal(url, sealedForCell(cell.name))],
    )
  })
}

async function describeTarget({
  cell,
  move,
  target,
}: MovingCell): Promise<Omit<MovedCell, 'pause_ms' | 'remaining_schemas'>> {
  const tables = await tablesOf(target, move.layout)
  const [{ rows, bytes }] = await rowsOf(
    target,
    `select coalesce(sum(greatest(reltuples, 0)), 0)::float8 as rows,
       coalesce(sum(pg_total_relation_size(oid)), 0)::float8 as bytes
     from pg_class where oid = any ($1::regclass[]) and relkind = 'r'`,
    [tables.map(qualifiedName)],
  )
  const { name, url } = cell
  return { name, from: addressOf(url), to: addressOf(move.url), state: move.state, tables: tables.length, rows, bytes }
}
