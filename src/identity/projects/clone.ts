import type { Tx } from '../../core/db/write.ts'

/** How one kind of configuration is copied into another project. */
export type Cloneable = {
  /** What `include` calls it, a plural kind name. */
  name: string
  /** Kinds that its rows refer to, of a later area: where they are included too, they are copied before it. */
  after?: readonly string[]
  /**
   * Copies the rows of a project and notes the id of each copy under the id of its original. References to rows that
   * were copied before are followed through `ids`. Never copies values of secrets, keys, content or history.
   */
  copy(tx: Tx, from: string, to: string, ids: Map<string, string>): Promise<void>
}

const registry: Cloneable[] = []

/** Offers a kind of configuration to project clones; called by the module that owns it. Kinds are copied in this order, save for `after`. */
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
  const left = new Set(registry.filter(entry => include.includes(entry.name)))
  const copy = async (entry: Cloneable) => {
    if (!left.delete(entry)) return
    for (const other of [...left]) if (entry.after?.includes(other.name)) await copy(other)
    await entry.copy(tx, from, to, ids)
  }
  for (const entry of [...left]) await copy(entry)
  return Object.fromEntries(ids)
}
