import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * The trigger chain of the current work: the ID of the event or firing that started it, then the triggers that caused
 * the work, oldest first. Events and messages carry it, so that no trigger fires on its own effects and the
 * consequences of one event can be counted. Work without a trigger has an empty chain and no overhead.
 */
const storage = new AsyncLocalStorage<readonly string[]>()

const EMPTY: readonly string[] = []

const ROOT = 'root:'

/** Returns the chain entry of the event or firing with which a chain starts. */
export const rootMark = (id: string): string => `${ROOT}${id}`

/** Returns the ID with which a chain starts, null if it has none. In a merged chain the first start counts. */
export const rootOf = (chain: readonly string[]): string | null =>
  chain.find(entry => entry.startsWith(ROOT))?.slice(ROOT.length) ?? null

/** Returns the triggers of a chain, oldest first. */
export const triggersIn = (chain: readonly string[]): string[] => chain.filter(entry => !entry.startsWith(ROOT))

/** Returns the trigger chain of this async context. */
export const currentTriggerChain = (): readonly string[] => storage.getStore() ?? EMPTY

/** Runs work caused by `chain`, which is added to the current chain. */
export function withTriggerChain<T>(chain: readonly string[] | null | undefined, work: () => T): T {
  if (!chain || chain.length === 0) return work()
  const current = currentTriggerChain()
  return storage.run(current.length === 0 ? chain : [...new Set([...current, ...chain])], work)
}

/** Runs work not caused by the current chain, such as a batch of several callers. */
export const withoutTriggerChain = <T>(work: () => T): T => storage.run(EMPTY, work)
