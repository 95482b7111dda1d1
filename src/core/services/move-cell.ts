import { injectFault } from '../base/fault-injection.ts'
import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { lockCellMigrations } from '../queues/migrate.ts'
import { beginMove, requireAnswer, requireLogicalLog } from './begin-move.ts'
import { HOME } from './cell.ts'
import { CellRefusal, findCell, NO_KEY, unknownCellMessage } from './cell-directory.ts'
import { beginPause, findMove } from './cell-moves.ts'
import { withCopiesLock } from './copies.ts'
import { fenceSource, untilCellClosed } from './fence-source.ts'
import { findMismatches, listTables, tablesOf } from './move-target.ts'
import {
  isFenced,
  type MovableCell,
  type MovingCell,
  openMoveSession,
  type Report,
  withSource,
  withTarget,
} from './moving-cell.ts'
import { startReplication, untilNearlyReplayed } from './replicate-cell.ts'
import { rowsOf, schemaOf } from './replication.ts'
import { type MovedCell, switchToTarget } from './switch-cell.ts'
import { undoMove } from './undo-move.ts'

/**
 * Moves a cell to another database while it is in use. Logical replication brings its rows there. Once the target is less than a
 * second late, the state of the cell becomes `moving`: processes close it, and hold its requests. Then the schemas of the source
 * are renamed in one transaction that waits for the running writes (the fence), so that no process can write there. When the target
 * has replayed the log up to the fence, the directory gets its URL, and processes open the cell there.
 *
 * The table `cell_moves` at home has the move from its begin to its end, and the renamed schemas show whether the source is fenced.
 * An interrupted move begins again before the fence, and is finished after it. Until the directory is changed it can be cancelled.
 */

/**
 * Moves a cell to the database of a URL, or continues the move there.
 * @throws CellRefusal if the cell or the database does not permit it
 */
export const moveCell = (home: Services, name: string, url: string, report: Report): Promise<MovedCell> =>
  withoutTenant(() =>
    withMoveLock(home, name, async requireLock => {
      const cell = await requireMovableCell(home, name)
      const before = await findMove(home, name)
      if (before && before.url !== url)
        throw new CellRefusal(
          `cell ${name} is being moved to ${addressOf(before.url)}: repeat the command with this URL, or cancel it`,
        )
      return withSource(cell, async source => {
        const moving = { home, cell, source, report, requireLock }
        if (before && (await isFenced(source, before))) {
          report(`continuing the move: ${addressOf(cell.url)} refuses writes`)
          return withTarget({ ...moving, move: before }, finishFencedMove)
        }
        await requireLogicalLog(source)
        await requireAnswer(url)
        if (before) await undoMove(home, cell, source, before)
        const move = await beginMove(home, cell, source, url)
        return withTarget({ ...moving, move }, replicateAndSwitch)
      })
    }),
  )

/**
 * Cancels the move of a cell, which continues in the state and database of before.
 * @returns the state
 * @throws CellRefusal if no move has begun
 */
export const cancelMove = (home: Services, name: string): Promise<{ state: string }> =>
  withoutTenant(() =>
    withMoveLock(home, name, async () => {
      const cell = await requireMovableCell(home, name)
      const move = await findMove(home, name)
      if (!move) throw new CellRefusal(`cell ${name} is not being moved`)
      await withSource(cell, source => undoMove(home, cell, source, move))
      return { state: (await requireMovableCell(home, name)).state }
    }),
  )

/** Runs work on the move of a cell, for which no other command works; `requireLock` fails if the session of the lock has ended. */
async function withMoveLock<T>(
  home: Services,
  name: string,
  work: (requireLock: () => Promise<unknown>) => Promise<T>,
): Promise<T> {
  const session = await openMoveSession(home.config.DATABASE_LISTEN_URL)
  try {
    const [{ locked }] = await rowsOf(session, `select pg_try_advisory_lock(hashtext($1)) as locked`, [
      `muster move ${await schemaOf(session)} ${name}`,
    ])
    if (!locked) throw new CellRefusal(`another command moves cell ${name}`)
    return await work(() => session.query('select'))
  } finally {
    await session.end()
  }
}

/**
 * Returns the cell of a name.
 * @throws CellRefusal if it cannot be moved
 */
export async function requireMovableCell(home: Services, name: string): Promise<MovableCell> {
  if (name === HOME.name) throw new CellRefusal('home cannot be moved: it is the database of DATABASE_URL')
  const cell = await findCell(home.pool, home, name)
  if (!cell) throw new CellRefusal(unknownCellMessage(name))
  const { number, url, state } = cell
  if (url === null) throw new CellRefusal(`cell ${name} cannot be moved: ${NO_KEY}`)
  if (state === 'down') throw new CellRefusal(`cell ${name} is down`)
  return { name, number, url, state }
}

/** Replicates the cell and switches to the target. A failure before the fence cancels the move. */
async function replicateAndSwitch(moving: MovingCell): Promise<MovedCell> {
  const { home, cell, move, source, report } = moving
  try {
    await injectFault(home, 'move_recorded')
    await startReplication(moving)
    await injectFault(home, 'move_copying')
    await untilNearlyReplayed(moving)
    report('collecting the statistics of the target')
    await moving.target.query('analyze')
    return await pauseAndSwitch(moving)
  } catch (error) {
    if (await isFenced(source, move).catch(() => true))
      throw new CellRefusal(`${messageOf(error)}; the old database refuses writes: repeat the command, or cancel it`, {
        cause: error,
      })
    await undoMove(home, cell, source, move)
    throw error
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** Stops the cell, fences its source and switches to the target. */
async function pauseAndSwitch(moving: MovingCell): Promise<MovedCell> {
  const { home, cell, move, source, report } = moving
  const migrations = await lockCellMigrations(cell.url)
  try {
    return await withCopiesLock(home, async homeSession => {
      const tables = await listTables(source, Object.values(move.source))
      const mismatches = findMismatches(tables, await tablesOf(moving.target, move.layout))
      if (mismatches.length > 0) throw new Error(`${mismatches[0]}: the source was migrated during the move`)
      const since = performance.now()
      await beginPause(home, cell.name)
      report(`cell ${cell.name} takes no requests`)
      await untilCellClosed(moving)
      await injectFault(home, 'move_paused')
      await moving.requireLock()
      await fenceSource(moving, homeSession, tables)
      await injectFault(home, 'move_fenced')
      return await switchToTarget(moving, homeSession, since)
    })
  } finally {
    await migrations.end()
  }
}

/** Finishes a move whose source is fenced. */
const finishFencedMove = (moving: MovingCell): Promise<MovedCell> => {
  const since = performance.now()
  return withCopiesLock(moving.home, homeSession => switchToTarget(moving, homeSession, since))
}
