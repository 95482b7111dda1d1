import { z } from 'zod'
import { AppError } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { idStatement, type Queryable, sql } from '../db/sql.ts'

/** The projects that are or have been in another cell than their IDs say, which the directory lists. */

const ProjectEntry = z.strictObject({
  project_id: z.string(),
  /** Name of its cell; null for home. */
  cell: z.string().nullable(),
  moving_to: z.string().nullable(),
  /** Numbers of the cells in which it has been. */
  numbers: z.array(z.int()),
})

/** Entry of a project in the directory. */
export type ProjectEntry = z.output<typeof ProjectEntry>

/** Reads the entries of the directory, which is at home. */
export const readProjectEntries = ({ pool }: Pick<Services, 'pool'>): Promise<readonly ProjectEntry[]> =>
  pool.any(sql.type(ProjectEntry)`select project_id, cell, moving_to, numbers from project_cells`)

/** Callers without rights on the project get it too, so it names neither the project nor the cell. */
const projectOnTheWay = (): AppError =>
  new AppError('CELL_UNAVAILABLE', {
    message: 'A project is being moved to another cell',
    headers: { 'Retry-After': '5' },
  })

/**
 * Refuses while a project is on the way between cells: none of them has its rows then.
 * @param db home
 * @throws CELL_UNAVAILABLE
 */
export async function requireNoMoves({ cells }: Pick<Services, 'cells'>, db: Queryable): Promise<void> {
  const moving = idStatement`select project_id as id from project_cells where moving_to is not null`
  if (cells && (await db.exists(moving))) throw projectOnTheWay()
}

/** The entries of the directory as a process has read them. */
export class ProjectEntries {
  #entries = new Map<string, ProjectEntry>()
  /** Entries of the projects that have left the cell of a number, or are on the way. */
  #departed = new Map<number, ProjectEntry[]>()
  #text = ''

  /**
   * Replaces the entries.
   * @param numberOf returns the number of a cell by its name, null for home
   * @returns whether they are the first, or differ from the entries before
   */
  replace(entries: readonly ProjectEntry[], numberOf: (cell: string | null) => number): 'first' | 'changed' | 'same' {
    const departed = new Map<number, ProjectEntry[]>()
    for (const entry of entries)
      for (const number of entry.numbers)
        if (number !== numberOf(entry.cell) || entry.moving_to !== null)
          departed.set(number, [...(departed.get(number) ?? []), entry])
    this.#entries = new Map(entries.map(entry => [entry.project_id, entry]))
    this.#departed = departed
    const before = this.#text
    this.#text = JSON.stringify(entries)
    if (before === '') return 'first'
    return this.#text === before ? 'same' : 'changed'
  }

  /** Returns the entry of a project, also while it is being moved; undefined if it is where its ID says. */
  find(id: string): ProjectEntry | undefined {
    return this.#entries.get(id)
  }

  /** Returns the entry of a project, undefined if it is where its ID says. Raises CELL_UNAVAILABLE while it is being moved. */
  entryOf(id: string): ProjectEntry | undefined {
    const entry = this.find(id)
    if (entry && entry.moving_to !== null) throw projectOnTheWay()
    return entry
  }

  /** Returns the entries of the projects that have left the cell of a number, or are on the way. */
  departedFrom(number: number): readonly ProjectEntry[] {
    return this.#departed.get(number) ?? []
  }

  /** Raises CELL_UNAVAILABLE if something that the cell of a number made may belong to a project that is being moved. */
  requireSettled(number: number): void {
    if (this.departedFrom(number).some(({ moving_to }) => moving_to !== null)) throw projectOnTheWay()
  }
}
