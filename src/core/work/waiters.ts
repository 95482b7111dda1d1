import { type Extension, extensionPoint } from '../base/declarations.ts'
import type { Tx } from '../writes/writer.ts'

/** Rows of a module that wait for rows of another one. A waiter references the awaited row in an indexed column. */
export type Waiter<Row> = {
  /** Whether the awaited row may have waiters. Default: every row. */
  mayWait?(row: Row): boolean
  /**
   * Called in the transaction that settles the awaited row, under its lock. Elsewhere waiters are locked first, so it locks
   * none of them; it sends a wake-up instead.
   */
  settled(tx: Tx, row: Row): Promise<void>
}

export type Waiters<Row> = {
  /** Registers a waiter, for the `extensions` of its module. */
  with(waiter: Waiter<Row>): Extension
  /** Notifies the waiters of a row that has settled. */
  notify(tx: Tx, row: Row): Promise<void>
}

/**
 * Declares the point at which later modules wait for rows of a kind.
 * @param folder the folder that declares it
 */
export function waiters<Row>(awaited: string, folder: string): Waiters<Row> {
  const point = extensionPoint<Waiter<Row>>({
    name: `waiters for ${awaited}`,
    folder,
    description: `Wakes rows that wait for ${awaited}, when one settles`,
  })
  return {
    with: point.with,
    async notify(tx, row) {
      for (const { mayWait, settled } of point.all()) if (mayWait?.(row) ?? true) await settled(tx, row)
    },
  }
}
