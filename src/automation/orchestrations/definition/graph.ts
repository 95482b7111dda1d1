import type { Edge, Node } from './definition.ts'

type Parts = { nodes: readonly Node[]; edges: readonly Edge[] }

/** Graph as used by the engine, the validation and the diagram. */
export type Graph = {
  nodes: readonly Node[]
  /** Position of each node in the definition: the order in which nodes are listed and applied. */
  order: ReadonlyMap<string, number>
  node(id: string): Node | undefined
  /** Edges by target, except those that close a cycle, which never activate a node. */
  incoming: ReadonlyMap<string, readonly Edge[]>
  outgoing: ReadonlyMap<string, readonly Edge[]>
  /** Edges that close a cycle through a `loop` node. */
  back: ReadonlySet<Edge>
  /** Nodes without incoming edges, including edges that close a cycle: the start nodes of a run. */
  starts: readonly string[]
  /** IDs in topological order; null if nodes other than `loop` form a cycle. */
  sorted: readonly string[] | null
}

/** Builds a graph. Edges with unknown ends are ignored; of several nodes with one ID, the first counts. */
export function graphOf({ nodes, edges }: Parts): Graph {
  const byId = new Map<string, Node>()
  const order = new Map<string, number>()
  for (const [index, node] of nodes.entries())
    if (!byId.has(node.id)) {
      byId.set(node.id, node)
      order.set(node.id, index)
    }
  const valid = edges.filter(({ from, to }) => byId.has(from) && byId.has(to))
  const back = backEdges([...byId.keys()], valid)
  const forward = valid.filter(edge => !back.has(edge))
  const incoming = groupBy(forward, ({ to }) => to)
  const outgoing = groupBy(forward, ({ from }) => from)
  const targets = new Set(valid.map(({ to }) => to))
  const isCyclic = cyclesOf({ nodes: nodes.filter(({ type }) => type !== 'loop'), edges: valid }).length > 0
  return {
    nodes: [...byId.values()],
    order,
    node: id => byId.get(id),
    incoming,
    outgoing,
    back,
    starts: [...byId.keys()].filter(id => !targets.has(id)),
    sorted: isCyclic ? null : sortTopologically([...byId.keys()], incoming, outgoing),
  }
}

const groupBy = (edges: readonly Edge[], by: (edge: Edge) => string): Map<string, Edge[]> => Map.groupBy(edges, by)

/** Sorts IDs topologically; null for a cycle. Ties follow the definition order. */
function sortTopologically(
  ids: readonly string[],
  incoming: Graph['incoming'],
  outgoing: Graph['outgoing'],
): string[] | null {
  const open = new Map(ids.map(id => [id, incoming.get(id)?.length ?? 0]))
  const ready = ids.filter(id => open.get(id) === 0)
  const sorted: string[] = []
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    sorted.push(id)
    for (const { to } of outgoing.get(id) ?? []) {
      const remaining = (open.get(to) as number) - 1
      open.set(to, remaining)
      if (remaining === 0) ready.push(to)
    }
  }
  return sorted.length === ids.length ? sorted : null
}

/** Returns the strongly connected components that form cycles, by Tarjan's algorithm with an explicit stack. */
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
 * Returns the edges that close a cycle in a depth-first traversal, which starts from the nodes without incoming edges
 * and then from the others, in definition order.
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
