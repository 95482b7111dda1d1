import { truncateChars } from '#core/base/storable-text.ts'
import type { Edge, Node, NodeType } from './definition.ts'
import type { Graph } from './graph.ts'

const MAX_LABEL = 80

/** Delimiters of node shapes by type; other types are rectangles. */
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

/** Styles of nodes by state in a run. */
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
 * Quotes a text for Mermaid: all characters except letters, digits and some punctuation are written as codes, so that
 * no text can end the quotes or start markup.
 */
function quote(text: string): string {
  const short = text.length > MAX_LABEL ? `${truncateChars(text, MAX_LABEL)}…` : text
  return `"${short.toWellFormed().replace(/[^\p{L}\p{N} _.,…-]/gu, mark => `#${mark.codePointAt(0)};`)}"`
}

/**
 * Renders a graph as a Mermaid flowchart. Edges that close a cycle are dotted; activation groups are part of edge
 * labels.
 * @param states node states of a run, by node ID
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
  return `${open}${quote(`${id} (${type})`)}${close}`
}

function labelOf({ condition, activation_group, activation_condition }: Edge): string {
  const group = activation_group == null ? [] : [`(${activation_condition ?? 'all'}: ${activation_group})`]
  // An empty text is a valid condition.
  const parts = [...(condition == null ? [] : [condition === '' ? '""' : condition]), ...group]
  return parts.length === 0 ? '' : `|${quote(parts.join(' '))}|`
}
