import type {
  NodeExecution,
  OrchestrationEdge,
  OrchestrationNode,
  OrchestrationRun,
  RequiredAction,
} from '@muster/client'
import { statusText } from '#components/status.tsx'
import * as strings from '#strings.ts'
import type { GraphEdge, GraphNode } from './graph.tsx'

/** An attempt of a node; an attempt from the stream has no input and output yet. */
export type Attempt = Omit<NodeExecution, 'input' | 'output'> & Partial<Pick<NodeExecution, 'input' | 'output'>>

/** A run in the cache: the record, with attempts that the stream has changed since. */
export type LiveRun = Omit<OrchestrationRun, 'node_executions'> & { node_executions: Attempt[] | null }

/** The graph of a version. */
export type Definition = { nodes: OrchestrationNode[]; edges: OrchestrationEdge[] }

/** What a run has made of a node. */
export type NodeState = {
  id: string
  type: string
  status: string
  attempts: Attempt[]
  /** The branch that the node has chosen. */
  label: string | null
  startedAt: string | null
  endedAt: string | null
  /** What the node waits for. */
  action: RequiredAction | undefined
  wakeAt: string | null
}

const TERMINAL = ['succeeded', 'failed', 'cancelled', 'expired']

/** Whether a run has ended. */
export const isEnded = ({ status }: Pick<OrchestrationRun, 'status'>): boolean => TERMINAL.includes(status)

/** Whether a run may be retried. */
export const mayRetry = ({ status }: Pick<OrchestrationRun, 'status'>): boolean =>
  isEnded({ status }) && status !== 'succeeded'

/** Whether a pause of a run is in force. */
export const isPaused = ({ required_actions }: Pick<OrchestrationRun, 'required_actions'>): boolean =>
  required_actions.some(({ type }) => type === 'paused')

/** The nodes of a run as if they were a graph, where its version may not be read. */
export const withoutDefinition = ({ node_executions }: LiveRun): Definition => ({
  nodes: [...new Map((node_executions ?? []).map(({ node_id: id, node_type: type }) => [id, { id, type }])).values()],
  edges: [],
})

/** Returns the nodes in an order in which each comes after those before it, as far as there is one. */
export function inOrder({ nodes, edges }: Definition): OrchestrationNode[] {
  const open = new Map(nodes.map(({ id }) => [id, 0]))
  for (const { from, to } of edges) if (open.has(from) && open.has(to)) open.set(to, (open.get(to) ?? 0) + 1)
  const byId = new Map(nodes.map(node => [node.id, node]))
  const sorted = new Set(nodes.filter(({ id }) => open.get(id) === 0))
  for (const { id } of sorted)
    for (const { from, to } of edges) {
      const next = byId.get(to)
      if (from !== id || !next) continue
      open.set(to, (open.get(to) ?? 0) - 1)
      if (open.get(to) === 0) sorted.add(next)
    }
  // Nodes of a cycle come last.
  return [...new Set([...sorted, ...nodes])]
}

/** Returns what a run has made of each node, in the order of the nodes. */
export function nodeStates(run: LiveRun, nodes: OrchestrationNode[]): NodeState[] {
  const byNode = Map.groupBy(run.node_executions ?? [], ({ node_id }) => node_id)
  return nodes.map(({ id, type }) => {
    const attempts = byNode.get(id) ?? []
    const last = attempts[attempts.length - 1]
    return {
      id,
      type,
      status: last?.status ?? (isEnded(run) ? 'skipped' : 'pending'),
      attempts,
      label: last?.label ?? null,
      startedAt: attempts[0]?.started_at ?? null,
      endedAt: last?.completed_at ?? null,
      action: run.required_actions.find(({ node_id }) => node_id === id),
      wakeAt: last?.wake_at ?? null,
    }
  })
}

/** Returns the reason for which a node waits, in few words. */
export function waitText({ status, action, wakeAt }: NodeState): string | undefined {
  if (action) return strings.runs.waits[action.type]
  if (status === 'waiting' && wakeAt) return strings.runs.until(new Date(wakeAt).toLocaleTimeString())
  return undefined
}

/** Whether an edge has passed: its source ended with its label, and its target was reached. */
function isPassed({ from, to, condition }: OrchestrationEdge, states: Map<string, NodeState>): boolean {
  const source = states.get(from)
  const target = states.get(to)
  const isReached = target !== undefined && target.status !== 'pending' && target.status !== 'skipped'
  return source?.status === 'completed' && isReached && (condition === undefined || condition === source.label)
}

/** Returns the graph of a run for the drawing. */
export function runGraph(
  states: NodeState[],
  { edges }: Definition,
  timeOf: (state: NodeState) => string | undefined,
): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const byId = new Map(states.map(state => [state.id, state]))
  return {
    nodes: states.map(state => {
      const { id, type, status, attempts, label } = state
      const facts = [
        waitText(state) ?? statusText(status),
        label !== null && `→ ${label || '""'}`,
        attempts.length > 1 && strings.runs.attempt(attempts.length),
        timeOf(state),
      ]
      return { id, type, status, detail: facts.filter(Boolean).join(' · ') }
    }),
    edges: edges.map(edge => ({
      from: edge.from,
      to: edge.to,
      label: edge.condition ?? undefined,
      isPassed: isPassed(edge, byId),
    })),
  }
}
