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

/** References of one property of a resource to others; a null property is `depends_on`. */
export type PropertyReferences = { property: string | null; others: readonly string[]; isDeferrable: boolean }

export type DeferredOrder = {
  order: string[]
  /** Properties, by resource, that are set when all resources exist, so that the others have an order. */
  deferred: ReadonlyMap<string, ReadonlySet<string>>
  /** Resources that have no order even then. */
  cycle: string[]
}

/** Sorts resources without the deferrable references of cycles. Linear in the number of references. */
export function deferredOrder(resources: ReadonlyMap<string, readonly PropertyReferences[]>): DeferredOrder {
  const all = dependencyOrder(othersIn(resources))
  if (all.cycle.length === 0) return { order: all.order, deferred: new Map(), cycle: [] }
  const core = coreOf(resources, all.cycle)
  const isLater = (id: string, { isDeferrable, others }: PropertyReferences): boolean =>
    isDeferrable && core.has(id) && others.some(other => core.has(other))
  const rest = new Map(
    [...resources].map(([id, references]) => [id, references.filter(each => !isLater(id, each))] as const),
  )
  const deferred = [...core].flatMap(id => {
    const later = (resources.get(id) ?? []).filter(each => isLater(id, each))
    return later.length > 0 ? [[id, new Set(later.map(({ property }) => property as string))] as const] : []
  })
  const { order, cycle } = dependencyOrder(othersIn(rest))
  return { order, deferred: new Map(deferred), cycle: [...coreOf(rest, cycle)] }
}

const othersIn = (resources: ReadonlyMap<string, readonly PropertyReferences[]>): Map<string, string[]> =>
  new Map([...resources].map(([id, references]) => [id, references.flatMap(({ others }) => others)]))

/** Returns the resources of cycles, and of ways between them, without those that only depend on a cycle. */
function coreOf(
  resources: ReadonlyMap<string, readonly PropertyReferences[]>,
  cycle: readonly string[],
): ReadonlySet<string> {
  const dependents = new Map(cycle.map(id => [id, [] as string[]]))
  for (const id of cycle)
    for (const { others } of resources.get(id) ?? []) for (const other of others) dependents.get(other)?.push(id)
  return new Set(dependencyOrder(dependents).cycle)
}
