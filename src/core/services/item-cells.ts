import { LRUCache } from 'lru-cache'
import { isId } from '../base/ids.ts'
import { type Cell, requireCell } from './cell.ts'
import { findItem, findToken } from './held-items.ts'
import type { ProjectEntries } from './project-entries.ts'

/** Most items whose cells are cached until the directory changes. */
const MAX_ITEMS = 10_000

const newCache = () => new LRUCache<string, string>({ max: MAX_ITEMS })

/** Finds the cells of items whose IDs and tokens do not say it, because projects have left the cell that made them. */
export class ItemCells {
  readonly #projects: ProjectEntries
  readonly #cellsOf: (number: number) => readonly Cell[]
  /** Names of cells by items. */
  #found = newCache()

  /** @param cellsOf returns the cells that may have items that the cell of a number made */
  constructor(projects: ProjectEntries, cellsOf: (number: number) => readonly Cell[]) {
    this.#projects = projects
    this.#cellsOf = cellsOf
  }

  /** Invalidates the cache. A running query stores its answer in the former one. */
  invalidate(): void {
    this.#found = newCache()
  }

  /** Returns the name of the cell that has an item of an ID or token; undefined if none has. Raises CELL_UNAVAILABLE. */
  async find(text: string, number: number): Promise<string | undefined> {
    const found = this.#found
    const cached = found.get(text)
    if (cached !== undefined) return cached
    let missing: unknown
    for (const cell of this.#cellsOf(number))
      try {
        if (!(await this.#isIn(cell, text))) continue
        found.set(text, cell.name)
        return cell.name
      } catch (error) {
        missing ??= error
      }
    if (missing) throw missing
    this.#projects.requireSettled(number)
    return undefined
  }

  /** Raises CELL_UNAVAILABLE if a cell that may have an item does not answer, also if another one has it. */
  async requireReachable(text: string, number: number): Promise<void> {
    await Promise.all(this.#cellsOf(number).map(cell => this.#isIn(cell, text)))
    this.#projects.requireSettled(number)
  }

  /** Whether a cell has an item. Raises CELL_UNAVAILABLE if its project is being moved. */
  async #isIn(cell: Cell, text: string): Promise<boolean> {
    const services = requireCell(cell)
    const project = await (isId(text) ? findItem : findToken)(services, text)
    if (typeof project === 'string') this.#projects.entryOf(project)
    return project !== undefined
  }
}
