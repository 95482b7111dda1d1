import type { Services } from '../base/services.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { findCell } from './cell-directory.ts'
import { type CellMove, endMove } from './cell-moves.ts'
import { dropSubscriptions, makeCopies, publicationOf, withCopiesLock } from './copies.ts'
import { unfenceSource } from './fence-source.ts'
import { copyTable, listTables, restoreTarget, tablesOf } from './move-target.ts'
import {
  isFenced,
  type MovableCell,
  openMoveSession,
  replicaName,
  unpublishSource,
  unsubscribeTarget,
} from './moving-cell.ts'
import { inTransactionOf } from './replication.ts'

/** The cancellation of the move of a cell. */

/** Returns a cell to its source, which takes writes again, and empties the target if it answers. */
export async function undoMove(
  home: Services,
  cell: MovableCell,
  source: DatabaseClient,
  move: CellMove,
): Promise<void> {
  const replica = await replicaName(source, move)
  const target = await openMoveSession(move.url).catch(() => null)
  try {
    await unsubscribeTarget(target, replica)
    await unpublishSource(source, replica)
    const wasFenced = await isFenced(source, move)
    if (wasFenced) await unfenceSource(source, move)
    if (target) {
      await endCopies(home, target)
      await inTransactionOf(target, () => emptyTarget(source, target, move))
    }
    await withCopiesLock(home, async homeSession => {
      if (wasFenced || (await isPaused(home, cell.name))) await makeCopies(home, homeSession, cell)
      await endMove(home, cell.name)
    })
  } finally {
    await target?.end()
  }
}

/** Ends the copies of the rows of home to a target that is abandoned after they began. */
const endCopies = (home: Services, target: DatabaseClient): Promise<void> =>
  withCopiesLock(home, async homeSession => dropSubscriptions(target, await publicationOf(homeSession)))

const isPaused = async (home: Services, name: string): Promise<boolean> =>
  (await findCell(home.pool, home, name))?.state === 'moving'

/** Tables whose rows a migration writes. */
const BOOKKEEPING = new Set(['migrations', 'breaking_migrations', 'version', 'queue', 'write_probe'])

/** Leaves a target as after its migration, with the months of the source. */
async function emptyTarget(source: DatabaseClient, target: DatabaseClient, move: CellMove): Promise<void> {
  await restoreTarget(target, move.layout, { isEmptied: true })
  const tables = await tablesOf(target, move.layout)
  for (const table of await listTables(source, Object.values(move.source))) {
    const to = tables.find(({ name }) => name === table.name)
    if (to && BOOKKEEPING.has(table.name)) await copyTable(source, target, table, to)
  }
}
