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
