import { AppError } from '../base/errors.ts'
import { settledWithin } from '../base/event-loop.ts'

/** Longest time for which a request waits for a cell that is moved. */
const WAIT_MS = 5000

/** The cells that are being moved, until this process has opened them again, and the requests that wait for them. */
export class MoveWaits {
  readonly #moves = new Map<string, PromiseWithResolvers<void>>()

  /** Makes requests wait for a cell. */
  begin(name: string): void {
    if (!this.#moves.has(name)) this.#moves.set(name, Promise.withResolvers())
  }

  /** Lets the requests that wait for a cell continue. */
  end(name: string): void {
    this.#moves.get(name)?.resolve()
    this.#moves.delete(name)
  }

  /** Waits until no cell is being moved, at most WAIT_MS. */
  async untilMoved(): Promise<void> {
    if (this.#moves.size > 0) await waitFor([...this.#moves.values()], WAIT_MS)
  }

  /** Runs work that finds the cell of a request: again after the move of a cell, for which it waits at most WAIT_MS. */
  async afterMoves<T>(work: () => T | Promise<T>): Promise<T> {
    const deadline = performance.now() + WAIT_MS
    for (;;) {
      try {
        return await work()
      } catch (error) {
        const isUnavailable = error instanceof AppError && error.code === 'CELL_UNAVAILABLE'
        const move = isUnavailable && this.#moves.get(String(error.meta?.cell))
        if (!move || performance.now() >= deadline) throw error
        await waitFor([move], deadline - performance.now())
      }
    }
  }
}

const waitFor = (moves: readonly PromiseWithResolvers<void>[], ms: number): Promise<unknown> =>
  settledWithin(ms, Promise.all(moves.map(({ promise }) => promise)))
