import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Which triggers led to the work that is under way, oldest first, behind a mark of the event or firing that all of it began with.
 * Events carry it and messages hand it on, so that a trigger is not fired by what it caused itself, and what one event leads
 * to can be counted. Work that no trigger caused has none and pays nothing.
 */
const storage = new AsyncLocalStorage<readonly string[]>()

const NONE: readonly string[] = []

const ROOT = 'root:'

/** The entry of a chain that names what it began with. */
export const rootMark = (id: string): string => `${ROOT}${id}`

/** What a chain began with; null where it does not say. Of a chain that was joined from several, what the first began with. */
export const rootOf = (chain: readonly string[]): string | null =>
  chain.find(entry => entry.startsWith(ROOT))?.slice(ROOT.length) ?? null

/** The triggers of a chain, oldest first. */
export const triggersIn = (chain: readonly string[]): string[] => chain.filter(entry => !entry.startsWith(ROOT))

/** What led here: ids of triggers, and the mark of what it began with. */
export const currentTriggerChain = (): readonly string[] => storage.getStore() ?? NONE

/** Does work that triggers caused, beside those that led here already; without any it is done as it is. */
export function withTriggerChain<T>(chain: readonly string[] | null | undefined, work: () => T): T {
  if (!chain || chain.length === 0) return work()
  const known = currentTriggerChain()
  return storage.run(known.length === 0 ? chain : [...new Set([...known, ...chain])], work)
}

/** Does work that whoever leads here did not cause, such as that of all who share a batch. */
export const withoutTriggerChain = <T>(work: () => T): T => storage.run(NONE, work)
