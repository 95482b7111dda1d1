import { AsyncLocalStorage } from 'node:async_hooks'

/** Name of a cell, which never changes, and the number that its IDs contain. */
export type CellIdentity = { name: string; number: number }

const current = new AsyncLocalStorage<number>()

/** Runs work of the cell with a number, which IDs and tokens that the work makes contain. */
export const inCell = <T>(number: number, work: () => T): T => current.run(number, work)

/** Returns the number of the cell whose work this is; undefined in a deployment without cells. */
export const currentCell = (): number | undefined => current.getStore()
