import type { Context } from '../../core/api/operation.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Edge, Node, NodeType } from './definition.ts'
import type { Graph } from './graph.ts'
import type { OrchestrationRow } from './model.ts'

/** A run of an orchestration to be drawn: the graph that it executes, and where it stands with the nodes. */
type Picture = { graph: Graph; states: ReadonlyMap<string, NodeState> }

/**
 * Finds a run for a caller who may read it.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, FORBIDDEN
 */
export type DiagramRun = (context: Context<any, any, OrchestrationRow>, runId: string) => Promise<Picture>

export const diagramRuns = extensionPoint<DiagramRun>('pictures of runs')

/** A graph as text of Mermaid, a language for diagrams. */

const MAX_LABEL = 80

/** Opening and closing of the shape of a type; others are rectangles. */
const SHAPES: { [Type in NodeType]?: [string, string] } = {
  condition: ['{', '}'],
  human: ['[/', '/]'],
  webhook: ['[/', '/]'],
  approval: ['[/', '/]'],
  agent: ['(', ')'],
  knowledge: ['[(', ')]'],
  memory_write: ['[(', ')]'],
  loop: ['[[', ']]'],
  sub_orchestration: ['[[', ']]'],
  delay: ['([', '])'],
  poll: ['([', '])'],
  emit_event: ['>', ']'],
}

/** How a node looks by where a run stands with it. */
const STYLES = {
  running: 'fill:#dbeafe,stroke:#2563eb',
  waiting: 'fill:#fef9c3,stroke:#ca8a04',
  requires_action: 'fill:#ffedd5,stroke:#ea580c',
  completed: 'fill:#dcfce7,stroke:#16a34a',
  failed: 'fill:#fee2e2,stroke:#dc2626',
  skipped: 'fill:#f3f4f6,stroke:#9ca3af,stroke-dasharray:4',
  cancelled: 'fill:#f3f4f6,stroke:#4b5563',
}
export type NodeState = keyof typeof STYLES

/**
 * A text between quotes, in which letters, digits and some marks stand for themselves and all else is written by its code:
 * nothing in it ends the quotes or begins a markup.
 */
function quoted(text: string): string {
  const short = text.length > MAX_LABEL ? `${truncateChars(text, MAX_LABEL)}…` : text
  return `"${short.toWellFormed().replace(/[^\p{L}\p{N} _.,…-]/gu, mark => `#${mark.codePointAt(0)};`)}"`
}

/**
 * The flowchart of a graph. Edges are dotted where they lead back and never pass; a group is named with the label.
 * @param states where a run stands with its nodes, by their ids
 */
export function diagramOf(graph: Graph, states: ReadonlyMap<string, NodeState> = new Map()): string {
  const nameOf = (id: string) => `n${graph.order.get(id)}`
  const edges = graph.nodes.flatMap(({ id }) => graph.outgoing.get(id) ?? [])
  const used = [...new Set(states.values())]
  const lines = [
    'flowchart TD',
    ...graph.nodes.map(node => `  ${nameOf(node.id)}${shapeOf(node)}`),
    ...edges.map(edge => `  ${nameOf(edge.from)} -->${labelOf(edge)} ${nameOf(edge.to)}`),
    ...[...graph.back].map(edge => `  ${nameOf(edge.from)} -.->${labelOf(edge)} ${nameOf(edge.to)}`),
    ...used.map(state => `  classDef ${state} ${STYLES[state]}`),
    ...[...states].flatMap(([id, state]) => (graph.node(id) ? [`  class ${nameOf(id)} ${state}`] : [])),
  ]
  return `${lines.join('\n')}\n`
}

function shapeOf({ id, type }: Node): string {
  const [open, close] = SHAPES[type as NodeType] ?? ['[', ']']
  return `${open}${quoted(`${id} (${type})`)}${close}`
}

function labelOf({ condition, activation_group, activation_condition }: Edge): string {
  const group = activation_group == null ? [] : [`(${activation_condition ?? 'all'}: ${activation_group})`]
  // An empty label is one that a condition may come to.
  const parts = [...(condition == null ? [] : [condition === '' ? '""' : condition]), ...group]
  return parts.length === 0 ? '' : `|${quoted(parts.join(' '))}|`
}
