import { canonicalJson } from '../../core/api/canonical.ts'
import { isObject } from '../../core/expressions/evaluate.ts'

/** Which of a node's kinds of work it is: see `runs/`. */
export const NODE_TYPES = [
  'agent',
  'tool',
  'transform',
  'condition',
  'knowledge',
  'memory_write',
  'human',
  'webhook',
  'approval',
  'loop',
  'sub_orchestration',
  'poll',
  'delay',
  'emit_event',
] as const
export type NodeType = (typeof NODE_TYPES)[number]

/** Types whose attempts a worker makes: each under a key, with a lease. */
export const WORKER_TYPES = ['tool', 'poll', 'knowledge', 'memory_write'] as const satisfies readonly NodeType[]
export type WorkerType = (typeof WORKER_TYPES)[number]

/** Asks the decider that its metadata name. Only in graphs of runs that another module drives. */
export const DECIDE = 'decide'

/** Types that start runs of their own. */
const NESTING_TYPES: readonly string[] = ['loop', 'sub_orchestration'] satisfies NodeType[]

export const isWorkerType = (type: string): type is WorkerType => (WORKER_TYPES as readonly string[]).includes(type)
export const startsRuns = (type: string): boolean => NESTING_TYPES.includes(type)

/** When an attempt that failed is made again. Delays in milliseconds. */
export type NodeRetry = {
  max_attempts?: number
  backoff?: { strategy?: 'fixed' | 'exponential'; delay_ms?: number; max_delay_ms?: number; factor?: number }
}

/** A node as it is written; which fields it reads depends on its type. A graph that was stored has been validated. */
export type Node = {
  id: string
  /** One of NODE_TYPES, or a type that this release does not know. */
  type: string
  input_mapping?: Record<string, unknown> | null
  state_mapping?: Record<string, unknown> | null
  retry?: NodeRetry | null
  timeout?: string | null
  on_error?: 'fail' | 'route' | null
  metadata?: Record<string, unknown> | null
  agent_id?: string
  prompt?: unknown
  output_schema?: object | null
  tool_id?: string
  operation_id?: string | null
  expression?: unknown
  memory_store_id?: string
  memory_store_ids?: string[]
  options?: string[] | null
  expires_in?: number | null
  mode?: 'receive' | null
  arguments?: Record<string, unknown> | null
  reasoning?: unknown
  evidence?: unknown
  predicted_impact?: unknown
  instructions?: string | null
  orchestration_id?: string
  collection?: string | null
  item_variable?: string | null
  parallelism?: number | null
  max_iterations?: number | null
  context_keys?: string[] | null
  exit_condition?: unknown
  interval?: string
  fail_on_timeout?: boolean | null
  duration?: unknown
  until?: unknown
  event_type?: string
}

export type Edge = {
  from: string
  to: string
  condition?: string | null
  activation_group?: string | null
  activation_condition?: 'all' | 'any' | 'settled' | null
  metadata?: Record<string, unknown> | null
}

/** What a version is of. */
export type GraphDefinition = {
  nodes: Node[]
  edges: Edge[]
  state_schema: Record<string, unknown> | null
  input_schema: Record<string, unknown> | null
}

/** Whether two values are the same as JSON, with their keys in the same order. */
export const isSameText = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right)

/** A node or edge without what makes no difference to a run: its metadata, and fields that are not set. */
const structural = ({ metadata: _inert, ...fields }: Node | Edge): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined))

/**
 * A definition as text that is the same for two that run alike. The order of keys is none of it, except in a state_mapping,
 * which applies them one after the other.
 */
function structureOf({ nodes, edges, state_schema, input_schema }: GraphDefinition): string {
  const ordered = nodes.map(structural).map(({ state_mapping, ...node }) => ({
    ...node,
    ...(isObject(state_mapping) && { state_mapping: Object.entries(state_mapping) }),
  }))
  return canonicalJson({ nodes: ordered, edges: edges.map(structural), state_schema, input_schema })
}

export const isSameGraph = (left: GraphDefinition, right: GraphDefinition): boolean =>
  structureOf(left) === structureOf(right)

/** A node as it is compared: the entries of its state_mapping in their order. */
function comparedNode(node: Node): Record<string, unknown> {
  const { state_mapping, ...fields } = structural(node)
  if (!isObject(state_mapping)) return structural(node)
  return { ...fields, state_mapping: new Map(Object.entries(state_mapping)) }
}

/**
 * A definition as it is compared with another: nodes by their ids, edges by their ends and labels, both in their order. That of
 * nodes is the order in which results are applied; that of edges says which of them closes a cycle.
 */
export function comparableGraph({ nodes, edges, ...schemas }: GraphDefinition): object {
  const named = new Map<string, unknown>()
  // Of edges with one name, from which number on one may be free: without it a graph of equal edges takes seconds.
  const counts = new Map<string, number>()
  for (const edge of edges) {
    const name = `${edge.from}->${edge.to}${edge.condition == null ? '' : `:${edge.condition}`}`
    let count = counts.get(name) ?? 1
    let unique = count === 1 ? name : `${name}#${count}`
    while (named.has(unique)) unique = `${name}#${++count}`
    counts.set(name, count)
    named.set(unique, structural(edge))
  }
  return {
    nodes: new Map(nodes.map(node => [node.id, comparedNode(node)])),
    edges: named,
    ...schemas,
  }
}

/** Older names of fields. */
const OLDER = { memory_id: 'memory_store_id', memory_ids: 'memory_store_ids' }

/** Nodes as they are kept: older names of fields become those of today, unless these are there too. */
export function withCurrentFieldNames(nodes: readonly Node[]): Node[] {
  return nodes.map(node => {
    const given = node as Record<string, unknown>
    if (!Object.keys(OLDER).some(name => name in given)) return node
    const kept = { ...given }
    for (const [older, name] of Object.entries(OLDER)) {
      if (older in kept) kept[name] ??= kept[older]
      delete kept[older]
    }
    return kept as Node
  })
}
