import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Which triggers led to the work that is under way, oldest first. Events carry it and messages hand it on, so that a trigger
 * is not fired by what it caused itself. Work that no trigger caused has none and pays nothing.
 */
const storage = new AsyncLocalStorage<readonly string[]>()

const NONE: readonly string[] = []

/** The ids of the triggers that led here. */
export const currentChain = (): readonly string[] => storage.getStore() ?? NONE

/** Does work that triggers caused, beside those that led here already; without any it is done as it is. */
export function causedBy<T>(chain: readonly string[] | null | undefined, work: () => T): T {
  if (!chain || chain.length === 0) return work()
  const known = currentChain()
  return storage.run(known.length === 0 ? chain : [...new Set([...known, ...chain])], work)
}

/** Does work that whoever leads here did not cause, such as that of all who share a batch. */
export const uncaused = <T>(work: () => T): T => storage.run(NONE, work)
