import type { Services } from '../base/services.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import type { CellMove } from './cell-moves.ts'
import { connect, dropSlot, dropSubscription, rowsOf } from './replication.ts'

/** The databases of a cell that is moved, and the names of objects that the move creates in them. */

/** A cell that is moved, with its current URL. */
export type MovableCell = { name: string; number: number; url: string; state: 'open' | 'closed' | 'moving' }

/** Reports progress. */
export type Report = (text: string) => void

/** How the command of a move reports, and requires the lock of the move; it fails if the session of the lock has ended. */
export type MoveCommand = { report: Report; requireLock: () => Promise<unknown> }

/** Sessions and names of a move. */
export type MovingCell = MoveCommand & {
  home: Services
  cell: MovableCell
  move: CellMove
  source: DatabaseClient
  target: DatabaseClient
  /** Name of slot, publication and subscription. */
  replica: string
}

/** Opens a session for the move of a cell. */
export const openMoveSession = (url: string): Promise<DatabaseClient> => connect(url, { purpose: 'move' })

/** Runs work with a session of the source of a cell. */
export async function withSource<T>({ url }: MovableCell, work: (source: DatabaseClient) => Promise<T>): Promise<T> {
  const source = await openMoveSession(url)
  try {
    return await work(source)
  } finally {
    await source.end()
  }
}

/** Runs work with a session of the target of a move. */
export async function withTarget<T>(
  moving: Omit<MovingCell, 'target' | 'replica'>,
  work: (moving: MovingCell) => Promise<T>,
): Promise<T> {
  const { source, move } = moving
  const target = await openMoveSession(move.url)
  try {
    return await work({ ...moving, target, replica: await replicaName(source, move) })
  } finally {
    await target.end()
  }
}

/** Returns the name of a schema of the source once it refuses writes. */
export const fencedName = (schema: string, { fence }: Pick<CellMove, 'fence'>): string => `${schema}_moved_${fence}`

/** Whether the schemas of the source have been renamed. */
export async function isFenced(source: DatabaseClient, move: CellMove): Promise<boolean> {
  const [{ fenced }] = await rowsOf(source, `select to_regnamespace($1) is not null as fenced`, [
    fencedName(move.source.tables, move),
  ])
  return fenced
}

/** Returns the name of slot, publication and subscription of a move: one per cell of a server. */
export async function replicaName(source: DatabaseClient, move: CellMove): Promise<string> {
  const [{ name }] = await rowsOf(
    source,
    `select 'muster_move_' || (select oid from pg_database where datname = current_database()) || '_' ||
       coalesce(to_regnamespace($1), to_regnamespace($2))::oid as name`,
    [fencedName(move.source.tables, move), move.source.tables],
  )
  return name
}

/** Whether a target has the subscription of a move. */
export async function hasSubscription(target: DatabaseClient, replica: string): Promise<boolean> {
  const [row] = await rowsOf(
    target,
    `select from pg_subscription where subname = $1
       and subdbid = (select oid from pg_database where datname = current_database())`,
    [replica],
  )
  return row !== undefined
}

/** Drops the subscription of a move, if the target answers and has it. */
export async function unsubscribeTarget(target: DatabaseClient | null, replica: string): Promise<void> {
  if (target && (await hasSubscription(target, replica))) await dropSubscription(target, replica)
}

/** Drops the slot and the publication of a move. */
export async function unpublishSource(source: DatabaseClient, replica: string): Promise<void> {
  await dropSlot(source, replica)
  await source.query(`drop publication if exists ${replica}`)
}
