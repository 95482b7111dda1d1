import { settledWithin } from '../base/event-loop.ts'
import { cellOfId, cellOfToken, isId, isToken } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { clearNotifiedCaches } from '../db/notified-cache.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { CELL_WAIT_MS, type Cell, HOME, requireCell } from './cell.ts'
import { type CellRow, readCells } from './cell-directory.ts'
import { DirectoryWatch } from './directory-watch.ts'
import { ItemCells } from './item-cells.ts'
import type { openServices } from './lifecycle.ts'
import { MoveWaits } from './move-waits.ts'
import { OpenedCells, type Serving } from './opened-cells.ts'
import { ProjectEntries, type ProjectEntry, readProjectEntries } from './project-entries.ts'

declare module '../base/services.ts' {
  interface Services {
    /** The cells of the deployment; null without cells. */
    cells: Cells | null
  }
}

/** Returns the services of the cell that has an item: these in a deployment without cells. Raises CELL_UNAVAILABLE. */
export const servicesOfId = (services: Services, id: string): Services | Promise<Services> =>
  services.cells?.holding([id]) ?? services

/** Most IDs of a request by which its cell is found. */
const MAX_CONSIDERED = 8

/**
 * The cells of a deployment and their services in this process. The directory is in the first cell; cells that it gains, loses or
 * moves are opened and closed without a restart, and a cell whose database does not answer is tried again.
 */
export class Cells {
  readonly home: Services
  readonly #only: readonly string[] | null
  readonly #watch: DirectoryWatch
  readonly #opened: OpenedCells
  readonly #moves = new MoveWaits()
  readonly #projects = new ProjectEntries()
  readonly #items = new ItemCells(this.#projects, number => this.sharing(number))
  #rows: readonly CellRow[] = []

  /**
   * @param options.serve starts what this process does in each cell besides home
   * @param options.only names of the cells that are opened, default all
   */
  constructor(
    home: Services,
    {
      role,
      serve = async () => undefined,
      only,
      options,
    }: {
      role: 'web' | 'worker' | 'cli'
      serve?: (services: Services) => Promise<Serving | undefined>
      only?: readonly string[]
      /** Further options with which services are opened. */
      options?: Partial<Parameters<typeof openServices>[1]>
    },
  ) {
    this.home = home
    this.#only = only ?? null
    this.#watch = new DirectoryWatch(home, () => this.#readDirectory())
    this.#opened = new OpenedCells(
      home,
      { ...options, role },
      { serve, isServed: row => this.#isServed(row), onCurrent: name => this.#moves.end(name) },
    )
  }

  /** Opens the cells; those whose database does not answer later. */
  async start(): Promise<void> {
    this.home.cell = HOME
    this.home.cells = this
    // A database that does not answer delays neither the other cells nor the start.
    await this.#watch.start(async () => settledWithin(CELL_WAIT_MS, Promise.all(await this.#readDirectory())))
  }

  /** Stops new work in the cells and waits for the running, for the end of the process. */
  async drain(): Promise<void> {
    this.#watch.stop()
    await this.#opened.drain()
  }

  /** Closes the services of the cells. */
  async close(): Promise<void> {
    await this.drain()
    await this.#opened.close()
  }

  /** Returns all cells, home first. */
  all(): Cell[] {
    const others = this.#rows.map(({ name, number, state }) => ({
      name,
      number,
      state,
      services: this.#opened.servicesOf(name),
    }))
    return [{ ...HOME, state: 'open', services: this.home }, ...others]
  }

  /** Returns the cells that this process opens, home first. */
  served(): Cell[] {
    return this.all().filter(cell => cell.name === HOME.name || this.#isServed(cell))
  }

  /** Returns the cell of a name, undefined for an unknown one. */
  named(name: string): Cell | undefined {
    return this.all().find(cell => cell.name === name)
  }

  /** Returns the services of the cell of a number, home if no cell has it. Raises CELL_UNAVAILABLE. */
  numbered(number: number): Services {
    if (number === 0) return this.home
    const cell = this.all().find(each => each.number === number)
    return cell ? requireCell(cell) : this.home
  }

  /** Returns the services of the cell in which a project is. Raises CELL_UNAVAILABLE, also while it is being moved. */
  ofProject(id: string): Services {
    const entry = this.#projects.entryOf(id)
    if (!entry) return this.numbered(cellOfId(id))
    const cell = this.#cellOf(entry)
    return cell ? requireCell(cell) : this.home
  }

  /** Whether a project is in another cell than home, or is being moved. */
  isInOtherCell(id: string): boolean {
    const entry = this.#projects.find(id)
    if (entry) return entry.cell !== null || entry.moving_to !== null
    const number = cellOfId(id)
    return number !== HOME.number && this.all().some(cell => cell.number === number)
  }

  /**
   * Returns the services of the cell that has an item, by the first of some values that is an ID or a token: of the cell that made
   * it, unless a project of that cell has been moved. Then the cells are queried, once per item. Raises CELL_UNAVAILABLE.
   */
  holding(values: readonly unknown[], { tokens = false } = {}): Services | Promise<Services> {
    const named = values
      .filter(value => typeof value === 'string')
      .filter(text => isId(text) || (tokens && isToken(text)))
    const numberOf = (text: string) => cellOfId(text) || (tokens ? cellOfToken(text) : 0)
    const first = named.find(text => numberOf(text) !== 0)
    const considered = first === undefined ? named.slice(0, MAX_CONSIDERED) : [first]
    if (considered.some(text => this.#projects.departedFrom(numberOf(text)).length > 0))
      return this.#findItems(considered, numberOf)
    return first === undefined ? this.home : this.numbered(numberOf(first))
  }

  /**
   * Raises CELL_UNAVAILABLE if a cell that may have the item of an ID does not answer, also if another one has the item: a hidden
   * item is answered as an unknown one.
   */
  async requireReachable(id: string): Promise<void> {
    const number = cellOfId(id)
    if (isId(id) && this.#projects.departedFrom(number).length > 0) await this.#items.requireReachable(id, number)
  }

  /** Returns the cells that may have the keys that the cell of a number made, this one first. */
  sharing(number: number): Cell[] {
    const own = this.all().find(each => each.number === number) ?? this.all()[0]
    const others = this.#projects.departedFrom(number).map(entry => this.#cellOf(entry))
    const found = [own, ...others.filter(cell => cell !== undefined)]
    return found.filter(({ name }, index) => found.findIndex(each => each.name === name) === index)
  }

  /** Raises CELL_UNAVAILABLE if something that the cell of a number made may belong to a project that is being moved. */
  requireSettled(number: number): void {
    this.#projects.requireSettled(number)
  }

  /** Waits until no cell is being moved, for five seconds at most. */
  untilMoved(): Promise<void> {
    return this.#moves.untilMoved()
  }

  /** Runs work that finds the cell of a request: again after the move of a cell, for which it waits five seconds at most. */
  afterMoves<T>(work: () => T | Promise<T>): Promise<T> {
    return this.#moves.afterMoves(work)
  }

  #isServed({ name, state }: Pick<CellRow, 'name' | 'state'>): boolean {
    return state !== 'down' && (this.#only?.includes(name) ?? true)
  }

  #cellOf({ cell }: ProjectEntry): Cell | undefined {
    return this.named(cell ?? HOME.name)
  }

  /** Queries the cells for items until one is in a cell besides home. */
  async #findItems(texts: readonly string[], numberOf: (text: string) => number): Promise<Services> {
    let missing: unknown
    for (const text of texts) {
      const name = await this.#items.find(text, numberOf(text)).catch(error => {
        missing ??= error
      })
      const cell = name === undefined ? undefined : this.named(name)
      if (cell && (cell.number !== 0 || texts.length === 1)) return requireCell(cell)
    }
    if (missing) throw missing
    return this.numbered(numberOf(texts[0]))
  }

  /** Reads the directory. Returns the changes of cells that it starts. */
  async #readDirectory(): Promise<readonly Promise<void>[]> {
    const { home } = this
    const [rows, entries] = await withoutTenant(() => Promise.all([readCells(home), readProjectEntries(home)]))
    const numberOf = (cell: string | null) => rows.find(({ name }) => name === cell)?.number ?? HOME.number
    this.#rows = rows
    const change = this.#projects.replace(entries, numberOf)
    if (change !== 'same') this.#items.invalidate()
    // A project that comes back to a cell has changed in the other.
    if (change === 'changed') clearNotifiedCaches()
    for (const { name, state } of rows) if (state === 'moving') this.#moves.begin(name)
    return this.#opened.follow(rows)
  }
}
