import type { Tx } from '../../core/write.ts'

/** How one kind of configuration is copied into another project. */
export type Cloneable = {
  /** What `include` calls it, a plural kind name. */
  name: string
  /**
   * Copies the rows of a project and notes the id of each copy under the id of its original. References to rows that
   * were copied before are followed through `ids`. Never copies values of secrets, keys, content or history.
   */
  copy(tx: Tx, from: string, to: string, ids: Map<string, string>): Promise<void>
}

const registry: Cloneable[] = []

/** Offers a kind of configuration to project clones; called by the module that owns it. Kinds are copied in this order. */
export function cloneable(entry: Cloneable): void {
  registry.push(entry)
}

export const cloneableNames = (): string[] => registry.map(entry => entry.name)

/** Copies what `include` names into a project. @returns the id of each copy by the id of its original */
export async function copyConfiguration(
  tx: Tx,
  from: string,
  to: string,
  include: readonly string[],
): Promise<Record<string, string>> {
  const ids = new Map<string, string>()
  for (const entry of registry) if (include.includes(entry.name)) await entry.copy(tx, from, to, ids)
  return Object.fromEntries(ids)
}
