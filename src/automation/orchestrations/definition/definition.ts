import { isObject } from '#core/base/exact-json.ts'

/** Types of nodes; executed in `runs/`. */
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

/** Node types executed by workers, each with an idempotency key and a lease. */
export const WORKER_TYPES = ['tool', 'poll', 'knowledge', 'memory_write'] as const satisfies readonly NodeType[]
export type WorkerType = (typeof WORKER_TYPES)[number]

/** Node type that creates a decision of the decider in its metadata. Only in graphs of driven runs. */
export const DECIDE = 'decide'

/** Node types that start nested runs. */
const NESTING_TYPES: readonly string[] = ['loop', 'sub_orchestration'] satisfies NodeType[]

export const isWorkerType = (type: string): type is WorkerType => (WORKER_TYPES as readonly string[]).includes(type)
export const startsRuns = (type: string): boolean => NESTING_TYPES.includes(type)

/** Retry policy of a node. Delays in milliseconds. */
export type NodeRetry = {
  max_attempts?: number
  backoff?: { strategy?: 'fixed' | 'exponential'; delay_ms?: number; max_delay_ms?: number; factor?: number }
}

/** A node; its fields depend on its type. Stored graphs have been validated. */
export type Node = {
  id: string
  /** One of NODE_TYPES, or a type that this release does not support. */
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

/** Versioned part of an orchestration. */
export type GraphDefinition = {
  nodes: Node[]
  edges: Edge[]
  state_schema: Record<string, unknown> | null
  input_schema: Record<string, unknown> | null
}

/** Whether two values have the same JSON, including the order of keys. */
export const isSameText = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right)

/** Returns a node or edge without metadata and unset fields, which do not affect runs. */
const structural = ({ metadata: _inert, ...fields }: Node | Edge): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined))

/** Returns a node for comparison, with its state_mapping as an ordered list. */
function comparedNode(node: Node): Record<string, unknown> {
  const { state_mapping, ...fields } = structural(node)
  if (!isObject(state_mapping)) return structural(node)
  return { ...fields, state_mapping: new Map(Object.entries(state_mapping)) }
}

/**
 * Returns a definition for comparison: nodes by ID, edges by ends and condition, both in order. The order of nodes is
 * the order in which outcomes are applied; the order of edges determines which of them closes a cycle.
 */
export function comparableGraph({ nodes, edges, ...schemas }: GraphDefinition): object {
  const byName = new Map<string, unknown>()
  // Next free number for edges of the same name: without it a graph of equal edges takes seconds.
  const counts = new Map<string, number>()
  for (const edge of edges) {
    const name = `${edge.from}->${edge.to}${edge.condition == null ? '' : `:${edge.condition}`}`
    let count = counts.get(name) ?? 1
    let unique = count === 1 ? name : `${name}#${count}`
    while (byName.has(unique)) unique = `${name}#${++count}`
    counts.set(name, count)
    byName.set(unique, structural(edge))
  }
  return {
    nodes: new Map(nodes.map(node => [node.id, comparedNode(node)])),
    edges: byName,
    ...schemas,
  }
}

/** Renamed fields, by their former names. */
const FORMER_NAMES = { memory_id: 'memory_store_id', memory_ids: 'memory_store_ids' }

/** Returns nodes with the current field names; a current name takes precedence over a former one. */
export function withCurrentFieldNames(nodes: readonly Node[]): Node[] {
  return nodes.map(node => {
    const fields = node as Record<string, unknown>
    if (!Object.keys(FORMER_NAMES).some(name => name in fields)) return node
    const renamed = { ...fields }
    for (const [former, name] of Object.entries(FORMER_NAMES)) {
      if (former in renamed) renamed[name] ??= renamed[former]
      delete renamed[former]
    }
    return renamed as Node
  })
}
