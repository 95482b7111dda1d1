import type { Tx } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'

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

/** Kinds of configuration that clones of a project can include; copied in the order of the modules, save for `after`. */
export const cloneables = extensionPoint<Cloneable>('cloneables')

export const cloneableNames = (): string[] => cloneables.all().map(entry => entry.name)

/** Copies what `include` names into a project. @returns the id of each copy by the id of its original */
export async function copyConfiguration(
  tx: Tx,
  from: string,
  to: string,
  include: readonly string[],
): Promise<Record<string, string>> {
  const ids = new Map<string, string>()
  const left = new Set(cloneables.all().filter(entry => include.includes(entry.name)))
  const copy = async (entry: Cloneable) => {
    if (!left.delete(entry)) return
    for (const other of [...left]) if (entry.after?.includes(other.name)) await copy(other)
    await entry.copy(tx, from, to, ids)
  }
  for (const entry of [...left]) await copy(entry)
  return Object.fromEntries(ids)
}
