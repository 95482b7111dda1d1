import type { Edge, Node } from './definition.ts'

type Parts = { nodes: readonly Node[]; edges: readonly Edge[] }

/** A graph as the engine, its validation and its picture read it. */
export type Graph = {
  nodes: readonly Node[]
  /** Place of each node in the definition, which is the order of everything that is shown or applied together. */
  order: ReadonlyMap<string, number>
  node(id: string): Node | undefined
  /** Edges by their target, without those that close a cycle: they never activate anything. */
  incoming: ReadonlyMap<string, readonly Edge[]>
  outgoing: ReadonlyMap<string, readonly Edge[]>
  /** Edges that close a cycle through a `loop` node. */
  back: ReadonlySet<Edge>
  /** Nodes that no edge leads to, not even one that closes a cycle: what a run begins with. */
  starts: readonly string[]
  /** Ids so that the source of each edge stands before its target; null when nodes other than `loop` are on a cycle. */
  sorted: readonly string[] | null
}

/** Reads a graph whose edges name nodes that exist; others are left out. Of nodes with one id the first counts. */
export function graphOf({ nodes, edges }: Parts): Graph {
  const byId = new Map<string, Node>()
  const order = new Map<string, number>()
  for (const [index, node] of nodes.entries())
    if (!byId.has(node.id)) {
      byId.set(node.id, node)
      order.set(node.id, index)
    }
  const known = edges.filter(({ from, to }) => byId.has(from) && byId.has(to))
  const back = backEdges([...byId.keys()], known)
  const forward = known.filter(edge => !back.has(edge))
  const incoming = groupBy(forward, ({ to }) => to)
  const outgoing = groupBy(forward, ({ from }) => from)
  const targets = new Set(known.map(({ to }) => to))
  const isCyclic = cyclesOf({ nodes: nodes.filter(({ type }) => type !== 'loop'), edges: known }).length > 0
  return {
    nodes: [...byId.values()],
    order,
    node: id => byId.get(id),
    incoming,
    outgoing,
    back,
    starts: [...byId.keys()].filter(id => !targets.has(id)),
    sorted: isCyclic ? null : sort([...byId.keys()], incoming, outgoing),
  }
}

const groupBy = (edges: readonly Edge[], by: (edge: Edge) => string): Map<string, Edge[]> => Map.groupBy(edges, by)

/** Ids in an order in which sources stand before targets, or null. Of those that could be next the first defined is. */
function sort(ids: readonly string[], incoming: Graph['incoming'], outgoing: Graph['outgoing']): string[] | null {
  const open = new Map(ids.map(id => [id, incoming.get(id)?.length ?? 0]))
  const ready = ids.filter(id => open.get(id) === 0)
  const sorted: string[] = []
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    sorted.push(id)
    for (const { to } of outgoing.get(id) ?? []) {
      const left = (open.get(to) as number) - 1
      open.set(to, left)
      if (left === 0) ready.push(to)
    }
  }
  return sorted.length === ids.length ? sorted : null
}

/**
 * The ids that are on cycles with each other, for every such set: strongly connected components by Tarjan's algorithm,
 * with a stack of its own.
 */
export function cyclesOf({ nodes, edges }: Parts): string[][] {
  const ids = [...new Set(nodes.map(({ id }) => id))]
  const among = new Set(ids)
  const inside = edges.filter(({ from, to }) => among.has(from) && among.has(to))
  const outgoing = groupBy(inside, ({ from }) => from)
  const reached = new Map<string, number>()
  const lowest = new Map<string, number>()
  const open: string[] = []
  const isOpen = new Set<string>()
  const cycles: string[][] = []
  const lower = (id: string, to: number) => lowest.set(id, Math.min(lowest.get(id) as number, to))
  for (const start of ids) {
    if (reached.has(start)) continue
    const path = [{ id: start, next: 0 }]
    for (let top = path.at(-1); top; top = path.at(-1)) {
      const { id } = top
      if (!reached.has(id)) {
        lowest.set(id, reached.size)
        reached.set(id, reached.size)
        open.push(id)
        isOpen.add(id)
      }
      const to = outgoing.get(id)?.[top.next++]?.to
      if (to === undefined) {
        path.pop()
        const below = path.at(-1)
        if (below) lower(below.id, lowest.get(id) as number)
        if (lowest.get(id) !== reached.get(id)) continue
        const component = open.splice(open.indexOf(id))
        for (const member of component) isOpen.delete(member)
        if (component.length > 1 || outgoing.get(id)?.some(edge => edge.to === id)) cycles.push(component)
      } else if (!reached.has(to)) path.push({ id: to, next: 0 })
      else if (isOpen.has(to)) lower(id, reached.get(to) as number)
    }
  }
  return cycles
}

/**
 * Edges that lead back to where a walk came from: depth first, from the nodes without incoming edges and then from the
 * rest, in the order of the definition.
 */
function backEdges(ids: readonly string[], edges: readonly Edge[]): Set<Edge> {
  const outgoing = groupBy(edges, ({ from }) => from)
  const targets = new Set(edges.map(({ to }) => to))
  const back = new Set<Edge>()
  const seen = new Set<string>()
  const open = new Set<string>()
  for (const start of [...ids.filter(id => !targets.has(id)), ...ids]) {
    if (seen.has(start)) continue
    const path = [{ id: start, next: 0 }]
    seen.add(start)
    open.add(start)
    while (path.length > 0) {
      const top = path[path.length - 1]
      const edge = outgoing.get(top.id)?.[top.next++]
      if (!edge) {
        open.delete(top.id)
        path.pop()
      } else if (open.has(edge.to)) back.add(edge)
      else if (!seen.has(edge.to)) {
        seen.add(edge.to)
        open.add(edge.to)
        path.push({ id: edge.to, next: 0 })
      }
    }
  }
  return back
}
