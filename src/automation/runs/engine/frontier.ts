import type { Graph } from '../../orchestrations/graph.ts'
import type { Edge } from '../../orchestrations/model.ts'
import type { NodeOutcome, RunRow } from '../model.ts'

/** How far a run has come in its graph. */
export type Progress = Pick<RunRow, 'outcomes' | 'active_nodes'>

type Passage = 'passed' | 'shut' | 'open'

/** Whether an edge lets a completed node's target begin: labelled ones compare, the others go by the node. */
const passes = ({ condition }: Edge, { label, through }: NodeOutcome): boolean =>
  condition == null ? through : condition === label

/**
 * The nodes that may begin now, in the order of the definition: those without edges into them, and those whose edges say so
 * and that have not begun before.
 */
export function computeFrontier(graph: Graph, { outcomes, active_nodes }: Progress): string[] {
  const begun = (id: string) => Object.hasOwn(outcomes, id) || active_nodes.includes(id)
  const dead = hasSettledGroup(graph) ? deadNodes(graph, outcomes, begun) : NOBODY
  const passage = (edge: Edge): Passage => {
    if (Object.hasOwn(outcomes, edge.from)) return passes(edge, outcomes[edge.from]) ? 'passed' : 'shut'
    return dead.has(edge.from) ? 'shut' : 'open'
  }
  return graph.nodes.flatMap(({ id }) => (!begun(id) && isReadyToStart(graph, id, passage) ? [id] : []))
}

const NOBODY: ReadonlySet<string> = new Set()

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

/** The edges into a node: those that count by themselves, and the groups of the others. */
function joins({ incoming }: Graph, id: string): { single: Edge[]; groups: Edge[][] } {
  const edges = incoming.get(id) ?? []
  const grouped = Map.groupBy(
    edges.filter(edge => edge.activation_group != null),
    edge => edge.activation_group as string,
  )
  return { single: edges.filter(edge => edge.activation_group == null), groups: [...grouped.values()] }
}

/** Nodes that have not begun and never will: no way into them can pass any more. */
function deadNodes(graph: Graph, outcomes: RunRow['outcomes'], begun: (id: string) => boolean): Set<string> {
  const dead = new Set<string>()
  const shut = (edge: Edge): boolean =>
    Object.hasOwn(outcomes, edge.from) ? !passes(edge, outcomes[edge.from]) : dead.has(edge.from)
  for (const id of graph.sorted ?? []) {
    if (begun(id) || graph.starts.includes(id)) continue
    const { single, groups } = joins(graph, id)
    const closed = (group: readonly Edge[]) => (conditionOf(group) === 'all' ? group.some(shut) : group.every(shut))
    if (single.every(shut) && groups.every(closed)) dead.add(id)
  }
  return dead
}
