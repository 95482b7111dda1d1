import { type CellIdentity, inCell } from '../base/current-cell.ts'
import { AppError } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { isTransient } from '../db/database-errors.ts'

/** A cell of a deployment, as a process uses it. */

declare module '../base/services.ts' {
  interface Services {
    /** The cell whose database these services use; null in a deployment without cells. */
    cell: CellIdentity | null
  }
}

/** Name and number of the first cell. */
export const HOME: CellIdentity = { name: 'home', number: 0 }

export const CELL_STATES = ['open', 'closed', 'moving', 'down'] as const

/** Whether a cell takes new projects (`open`), none (`closed`), or no requests (`moving`, `down`). */
export type CellState = (typeof CELL_STATES)[number]

export type Cell = CellIdentity & {
  state: CellState
  /** Null while its database does not answer. */
  services: Services | null
}

/** Time after which a cell whose database does not answer is unavailable. */
export const CELL_WAIT_MS = 4000

/** Runs work in the cell of services, if the deployment has cells. */
export const inCellOf = <T>({ cell }: Pick<Services, 'cell'>, work: () => T): T =>
  cell ? inCell(cell.number, work) : work()

/** Returns CELL_UNAVAILABLE, which names the cell. */
export const cellUnavailable = ({ name }: Pick<Cell, 'name'>, cause?: unknown): AppError =>
  new AppError('CELL_UNAVAILABLE', { cause, meta: { cell: name }, headers: { 'Retry-After': '5' } })

/** Returns the name of the cell in a CELL_UNAVAILABLE error; null for other errors. */
export const unavailableCellName = (error: unknown): string | null =>
  error instanceof AppError && error.code === 'CELL_UNAVAILABLE' ? String(error.meta?.cell) : null

/** Raises CELL_UNAVAILABLE in place of an error of an unavailable database. */
export async function raiseUnavailable<T>(cell: Pick<Cell, 'name'>, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw isTransient(error) ? cellUnavailable(cell, error) : error
  }
}

/** Returns the services of a cell. Raises CELL_UNAVAILABLE. */
export function requireCell(cell: Cell): Services {
  if (!cell.services || cell.state === 'down' || cell.state === 'moving') throw cellUnavailable(cell)
  return cell.services
}
