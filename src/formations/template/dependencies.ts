/** The order of resources by what they depend on; of those that could come next the first one that was written. */
export function dependencyOrder(depends: ReadonlyMap<string, readonly string[]>): {
  order: string[]
  /** What depends on itself, directly or through others; the order is without it. */
  cycle: string[]
} {
  const left = new Map([...depends].map(([id, others]) => [id, new Set(others)]))
  const followers = Map.groupBy(
    [...depends].flatMap(([id, others]) => [...new Set(others)].map(other => ({ id, other }))),
    ({ other }) => other,
  )
  const written = new Map([...depends.keys()].map((id, index) => [id, index]))
  const ready = [...left].filter(([, others]) => others.size === 0).map(([id]) => id)
  const order: string[] = []
  while (ready.length > 0) {
    const id = ready.shift() as string
    order.push(id)
    left.delete(id)
    for (const { id: follower } of followers.get(id) ?? []) {
      const waits = left.get(follower)
      if (!waits?.delete(id) || waits.size > 0) continue
      const place = written.get(follower) as number
      const at = ready.findIndex(other => (written.get(other) as number) > place)
      ready.splice(at === -1 ? ready.length : at, 0, follower)
    }
  }
  return { order, cycle: [...left.keys()] }
}
