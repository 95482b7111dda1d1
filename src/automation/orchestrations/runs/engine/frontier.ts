import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { Edge } from '#automation/orchestrations/definition/model.ts'
import type { NodeOutcome, RunRow } from '../model.ts'

/** Progress of a run through its graph. */
export type Progress = Pick<RunRow, 'outcomes' | 'active_nodes'>

type Passage = 'passed' | 'shut' | 'open'

/**
 * Whether an edge from a completed node passes: an edge with a condition compares it with the label, other edges pass
 * if the node says so.
 */
const passes = ({ condition }: Edge, { label, through }: NodeOutcome): boolean =>
  condition == null ? through : condition === label

/**
 * Returns the nodes that may start, in definition order: nodes without incoming edges, and nodes that were not started
 * and whose edges activate them.
 */
export function computeFrontier(graph: Graph, { outcomes, active_nodes }: Progress): string[] {
  const isStarted = (id: string) => Object.hasOwn(outcomes, id) || active_nodes.includes(id)
  const dead = hasSettledGroup(graph) ? deadNodes(graph, outcomes, isStarted) : NO_NODES
  const passage = (edge: Edge): Passage => {
    if (Object.hasOwn(outcomes, edge.from)) return passes(edge, outcomes[edge.from]) ? 'passed' : 'shut'
    return dead.has(edge.from) ? 'shut' : 'open'
  }
  return graph.nodes.flatMap(({ id }) => (!isStarted(id) && isReadyToStart(graph, id, passage) ? [id] : []))
}

const NO_NODES: ReadonlySet<string> = new Set()

const hasSettledGroup = ({ incoming }: Graph): boolean =>
  [...incoming.values()].some(edges => edges.some(edge => edge.activation_condition === 'settled'))

function isReadyToStart(graph: Graph, id: string, passage: (edge: Edge) => Passage): boolean {
  if (graph.starts.includes(id)) return true
  const { single, groups } = joins(graph, id)
  if (single.some(edge => passage(edge) === 'passed')) return true
  return groups.some(group => {
    const passages = group.map(passage)
    const passed = passages.includes('passed')
    if (conditionOf(group) === 'any') return passed
    if (conditionOf(group) === 'all') return passages.every(each => each === 'passed')
    return passed && !passages.includes('open')
  })
}

const conditionOf = (group: readonly Edge[]): 'all' | 'any' | 'settled' =>
  group.find(edge => edge.activation_condition != null)?.activation_condition ?? 'all'

/** Returns the edges into a node: ungrouped edges, which activate it individually, and the groups of the others. */
function joins({ incoming }: Graph, id: string): { single: Edge[]; groups: Edge[][] } {
  const edges = incoming.get(id) ?? []
  const grouped = Map.groupBy(
    edges.filter(edge => edge.activation_group != null),
    edge => edge.activation_group as string,
  )
  return { single: edges.filter(edge => edge.activation_group == null), groups: [...grouped.values()] }
}

/** Returns the nodes that can never start: no edge into them can pass. */
function deadNodes(graph: Graph, outcomes: RunRow['outcomes'], isStarted: (id: string) => boolean): Set<string> {
  const dead = new Set<string>()
  const isShut = (edge: Edge): boolean =>
    Object.hasOwn(outcomes, edge.from) ? !passes(edge, outcomes[edge.from]) : dead.has(edge.from)
  for (const id of graph.sorted ?? []) {
    if (isStarted(id) || graph.starts.includes(id)) continue
    const { single, groups } = joins(graph, id)
    const isClosed = (group: readonly Edge[]) =>
      conditionOf(group) === 'all' ? group.some(isShut) : group.every(isShut)
    if (single.every(isShut) && groups.every(isClosed)) dead.add(id)
  }
  return dead
}
