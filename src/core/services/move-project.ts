import { setTimeout as sleep } from 'node:timers/promises'
import { injectFault } from '../base/fault-injection.ts'
import { cellOfId } from '../base/ids.ts'
import { type DatabaseClient, withStatementLimit } from '../db/pg-client.ts'
import { sql } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { queues } from '../queues/queue.ts'
import { leaseHolding } from '../work/takeover.ts'
import { type Cell, HOME, inCellOf, requireCell } from './cell.ts'
import { unknownCellMessage } from './cell-directory.ts'
import type { Cells } from './cells.ts'
import { insertStagedRows } from './insert-project.ts'
import {
  connectTo,
  dropStaged,
  hasProject,
  openSession,
  type ProjectMove,
  type ProjectSession,
  refuse,
  requireUnshared,
  setReplicaRole,
} from './moving-project.ts'
import { MOVED_HOLDER } from './project-rows.ts'
import { rowsOf } from './replication.ts'
import { takeLateRows, takeRowsWithRetries } from './take-project.ts'

/**
 * Moves a project to another cell. For the source a move is the deletion of the project, for the target the recovery of its work
 * after the loss of the workers. One transaction at the source takes the rows, which are in staging tables of the target when it
 * commits: from then on no process finds the project until the target has the rows. A repeat after a crash begins again, or ends
 * what began.
 */

/** A project whose move has ended, at its target or, if it was cancelled, at its source. */
export type MovedProject = {
  project_id: string
  from: string
  to: string
  /** Number of the inserted rows; null if this command has inserted none. */
  rows: number | null
  cancelled: boolean
}

/** Time in which processes receive a change of the directory. A later one does no harm, but answers 404 instead of 503. */
const HEARD_MS = 1000

/**
 * Moves a project to the cell of a name, or ends a move that was interrupted.
 * @throws CellRefusal
 */
export const moveProject = (
  cells: Cells,
  id: string,
  target: string,
  onStep: (text: string) => void = () => {},
): Promise<MovedProject> =>
  withoutTenant(() => withStatementLimit(Number.POSITIVE_INFINITY, () => moveUnderLock(cells, id, target, onStep)))

async function moveUnderLock(
  cells: Cells,
  id: string,
  name: string,
  onStep: (text: string) => void,
): Promise<MovedProject> {
  const target = cells.named(name) ?? refuse(unknownCellMessage(name))
  const directory = await connectTo(cells.all()[0])
  const opened: DatabaseClient[] = [directory]
  try {
    const [{ locked }] = await rowsOf(
      directory,
      `select pg_try_advisory_lock(hashtextextended('muster move ' || $1, 0)) as locked`,
      [id],
    )
    if (!locked) refuse(`another command moves the project ${id}`)
    const entry = await readEntry(cells, directory, id)
    const source = cells.named(entry.cell) ?? refuse(unknownCellMessage(entry.cell))
    // A move back to the source of an interrupted one ends it where nothing has left the source.
    const resumed = entry.moving_to !== null
    const other = resumed ? (cells.named(entry.moving_to as string) ?? target) : target
    if (resumed && name !== other.name && name !== source.name)
      refuse(`project ${id} is on the way to ${other.name}: repeat the move to ${other.name}`)
    if (source.name === other.name) refuse(`project ${id} is in ${source.name}`)
    for (const cell of [source, other]) requireServed(cell)
    if (!resumed && other.state !== 'open') refuse(`cell ${other.name} is ${other.state}`)
    for (const cell of [source, other]) opened.push(await connectTo(cell))
    const [, from, to] = opened
    await requireSameMigrations(from, to)
    const move: ProjectMove = {
      cells,
      directory,
      id,
      source: await openSession(source, from),
      target: await openSession(other, to),
    }
    if (!resumed) await requireMovable(move)
    else if (name === source.name) return await cancelMove(move)
    return await executeMove(move, onStep)
  } finally {
    await Promise.all(opened.map(client => client.end()))
  }
}

function requireServed({ name, state, services }: Cell): void {
  if (state === 'down' || state === 'moving') refuse(`cell ${name} is ${state}`)
  if (!services) refuse(`cell ${name} does not answer`)
}

type Entry = { cell: string; moving_to: string | null }

async function readEntry(cells: Cells, directory: DatabaseClient, id: string): Promise<Entry> {
  const [entry] = await rowsOf(
    directory,
    `select coalesce(cell, '${HOME.name}') as cell, moving_to from project_cells where project_id = $1`,
    [id],
  )
  const made = cells.all().find(({ number }) => number === cellOfId(id))
  return entry ?? { cell: made?.name ?? HOME.name, moving_to: null }
}

/** @throws CellRefusal if the project does not exist, is shared across projects, or the databases do not permit it */
async function requireMovable({ id, source, target }: ProjectMove): Promise<void> {
  if (!(await hasProject(source, id))) refuse(`no project is called ${id}`)
  await requireSameSchema(source, target)
  await requireUnshared(source, id)
  for (const session of [source, target]) {
    await setReplicaRole(session)
    await session.client.query('reset session_replication_role')
  }
}

async function requireSameMigrations(...clients: [DatabaseClient, DatabaseClient]): Promise<void> {
  const statement = `select string_agg(name, ',' order by name) as names from migrations`
  const [[here], [there]] = await Promise.all(clients.map(client => rowsOf(client, statement)))
  if (here.names !== there.names) refuse('the cells are not migrated alike: run muster migrate')
}

async function requireSameSchema(source: ProjectSession, target: ProjectSession): Promise<void> {
  for (const { name } of source.tables) {
    const [own, others] = [source, target].map(({ columns }) => JSON.stringify(columns.get(name)))
    if (own !== others) refuse(`the columns of ${name} differ between ${source.cell.name} and ${target.cell.name}`)
  }
  const config = 'select text_search_config as name from retrieval_settings'
  const [[ours], [theirs]] = await Promise.all([source, target].map(({ client }) => rowsOf(client, config)))
  if (ours && theirs && ours.name !== theirs.name)
    refuse(`searches use ${ours.name} in ${source.cell.name}, and ${theirs.name} in ${target.cell.name}`)
}

/** Writes where a project is, or where it is on the way to, and the numbers of the cells in which it has been. */
const writeEntry = (
  { directory, id, source, target }: ProjectMove,
  cell: Cell,
  movingTo: Cell | null,
): Promise<unknown> =>
  directory.query(
    `insert into project_cells as p (project_id, cell, moving_to, numbers) values ($1, $2, $3, $4)
     on conflict (project_id) do update set cell = excluded.cell, moving_to = excluded.moving_to,
       numbers = array(select distinct n from unnest(p.numbers || excluded.numbers) n order by n)`,
    [
      id,
      cell.number === 0 ? null : cell.name,
      movingTo?.name ?? null,
      [cellOfId(id), source.cell.number, target.cell.number],
    ],
  )

/** Ends a move before its rows have left the source. */
async function cancelMove(move: ProjectMove): Promise<MovedProject> {
  const { id, source, target } = move
  // Waits for a transaction of a lost command.
  if (!(await hasProject(source, id, 'for update')))
    refuse(`project ${id} has left ${source.cell.name}: repeat the move to ${target.cell.name}`)
  await dropStaged(target, id)
  await writeEntry(move, source.cell, null)
  return { project_id: id, from: target.cell.name, to: source.cell.name, rows: null, cancelled: true }
}

async function executeMove(move: ProjectMove, onStep: (text: string) => void): Promise<MovedProject> {
  const { cells, id, source, target } = move
  await writeEntry(move, source.cell, target.cell)
  onStep(`project ${id} takes no requests`)
  await sleep(HEARD_MS)
  try {
    if (await takeRowsWithRetries(move)) onStep(`its rows have left ${source.cell.name}`)
  } catch (error) {
    for (const { client } of [source, target]) await client.query('rollback').catch(() => {})
    // Without an answer of the source it is not known whether the rows have left it.
    if (await hasProject(source, id, 'for update').catch(() => false)) await cancelMove(move)
    throw error
  }
  await injectFault(cells.home, 'move_taken')
  const rows = await insertStagedRows(move)
  onStep(`its rows are in ${target.cell.name}`)
  await injectFault(cells.home, 'move_placed')
  await recoverWork(target)
  await writeEntry(move, target.cell, null)
  await sleep(HEARD_MS)
  await takeLateRows(move)
  return { project_id: id, from: source.cell.name, to: target.cell.name, rows, cancelled: false }
}

/** Ends the leases of the source, sends the wake-ups of work without a message, and wakes the workers. */
async function recoverWork({ cell }: ProjectSession): Promise<void> {
  const services = requireCell(cell)
  await inCellOf(services, () =>
    services.write(async tx => {
      for (const endLeases of leaseHolding.all())
        await endLeases(tx, holder => sql.fragment`${holder} = ${MOVED_HOLDER}`, services)
    }),
  )
  for (const { name } of queues.all()) services.queues.wake(name, 'now')
}
