/** Sorts resources topologically. Of the resources that could be next, the first in the template is next. */
export function dependencyOrder(depends: ReadonlyMap<string, readonly string[]>): {
  order: string[]
  /** Resources that are in a cycle or depend on one; the order omits them. */
  cycle: string[]
} {
  const remaining = new Map([...depends].map(([id, others]) => [id, new Set(others)]))
  const dependents = Map.groupBy(
    [...depends].flatMap(([id, others]) => [...new Set(others)].map(other => ({ id, other }))),
    ({ other }) => other,
  )
  const positions = new Map([...depends.keys()].map((id, index) => [id, index]))
  const ready = [...remaining].filter(([, others]) => others.size === 0).map(([id]) => id)
  const order: string[] = []
  while (ready.length > 0) {
    const id = ready.shift() as string
    order.push(id)
    remaining.delete(id)
    for (const { id: dependent } of dependents.get(id) ?? []) {
      const unmet = remaining.get(dependent)
      if (!unmet?.delete(id) || unmet.size > 0) continue
      const position = positions.get(dependent) as number
      const at = ready.findIndex(other => (positions.get(other) as number) > position)
      ready.splice(at === -1 ? ready.length : at, 0, dependent)
    }
  }
  return { order, cycle: [...remaining.keys()] }
}

/**
 * Returns references, as `<id> <other>`, without which there is no cycle: of resources that depend on each other, the first
 * one loses its references to the others.
 */
export function cyclicReferences(depends: ReadonlyMap<string, ReadonlySet<string>>): Set<string> {
  const remaining = new Map([...depends].map(([id, others]) => [id, new Set(others)]))
  const dependents = Map.groupBy(
    [...depends].flatMap(([id, others]) => [...others].map(other => ({ id, other }))),
    ({ other }) => other,
  )
  const broken = new Set<string>()
  const ready = [...remaining].filter(([, others]) => others.size === 0).map(([id]) => id)
  const release = (id: string): void => {
    remaining.delete(id)
    for (const { id: dependent } of dependents.get(id) ?? []) {
      const unmet = remaining.get(dependent)
      if (unmet?.delete(id) && unmet.size === 0) ready.push(dependent)
    }
  }
  for (const id of depends.keys()) {
    for (let next = ready.pop(); next !== undefined; next = ready.pop()) release(next)
    const others = remaining.get(id)
    if (others === undefined) continue
    for (const other of others) broken.add(`${id} ${other}`)
    release(id)
  }
  return broken
}

/** References of one property of a resource to others; a null property cannot be set later. */
export type PropertyReferences = { property: string | null; others: readonly string[]; isDeferrable: boolean }

export type DeferredOrder = {
  order: string[]
  /** Properties, by resource, that are set when all resources exist, so that the others have an order. */
  deferred: ReadonlyMap<string, ReadonlySet<string>>
  /** Resources that have no order even then. */
  cycle: string[]
}

/**
 * Sorts resources, and in a cycle defers properties until there is an order: of the first resource of the cycle whose references in it
 * can all be deferred, otherwise of the first with some. At most one round for each resource, of time linear in the references.
 */
export async function deferredOrder(
  resources: ReadonlyMap<string, readonly PropertyReferences[]>,
  yieldIfLong: () => Promise<void>,
): Promise<DeferredOrder> {
  const deferred = new Map<string, Set<string>>()
  for (;;) {
    await yieldIfLong()
    const remaining = new Map(
      [...resources].map(([id, references]) => [
        id,
        references.filter(({ property }) => property === null || !deferred.get(id)?.has(property)),
      ]),
    )
    const othersOf = (references: readonly PropertyReferences[]) => references.flatMap(({ others }) => others)
    const { order, cycle } = dependencyOrder(
      new Map([...remaining].map(([id, references]) => [id, othersOf(references)])),
    )
    if (cycle.length === 0) return { order, deferred, cycle }
    const core = cycleCore(new Map(cycle.map(id => [id, othersOf(remaining.get(id) ?? [])])))
    const candidates = [...core].map(id => {
      const within = (remaining.get(id) ?? []).filter(({ others }) => others.some(other => core.has(other)))
      return {
        id,
        names: within.filter(({ isDeferrable }) => isDeferrable),
        isWhole: within.every(each => each.isDeferrable),
      }
    })
    const next = candidates.find(({ isWhole }) => isWhole) ?? candidates.find(({ names }) => names.length > 0)
    if (!next) return { order, deferred, cycle: [...core] }
    const names = next.names.map(({ property }) => property as string)
    deferred.set(next.id, new Set([...(deferred.get(next.id) ?? []), ...names]))
  }
}

/** Returns the resources of cycles, and of ways between them, without those that only depend on a cycle. */
function cycleCore(depends: ReadonlyMap<string, readonly string[]>): ReadonlySet<string> {
  const dependents = new Map([...depends.keys()].map(id => [id, [] as string[]]))
  for (const [id, others] of depends) for (const other of others) dependents.get(other)?.push(id)
  return new Set(dependencyOrder(dependents).cycle)
}
