import type { Edge, GraphDefinition as Graph, Node } from '#automation/orchestrations/definition/definition.ts'
import { DECIDE } from '#automation/orchestrations/definition/definition.ts'
import { pathsOf } from '#core/expressions/references.ts'
import {
  type AwaitedEvent,
  FAIL,
  fallbackOf,
  nextStepOf,
  type PlaybookDefinition,
  type PlaybookStep,
} from './definition.ts'

/**
 * Compiles a playbook to the graph of its executions. A step becomes a node with its key; a step with `when` is
 * preceded by a condition node. Edges are ungrouped, so that branches can merge at a step.
 */

/** Returns the ID of the condition node of a step with `when`. */
export const conditionOf = (key: string): string => `${key}__when`

/** Returns the key of the step of a node, and whether the node is its condition. */
export function stepOf(nodeId: string): { key: string; isCondition: boolean } {
  const isCondition = nodeId.endsWith(CONDITION_SUFFIX)
  return { key: isCondition ? nodeId.slice(0, -CONDITION_SUFFIX.length) : nodeId, isCondition }
}
const CONDITION_SUFFIX = '__when'

/** Root names that expressions of steps read. */
const ROOTS: readonly string[] = ['case', 'input', 'steps', 'execution']

/** Default input of automated steps. */
const DEFAULT_CASE_INPUT = {
  number: { var: 'case.number' },
  title: { var: 'case.title' },
  description: { var: 'case.description' },
  fields: { var: 'case.fields' },
}

export function compilePlaybook({ steps }: Pick<PlaybookDefinition, 'steps'>): Graph {
  const entries = new Map(steps.map(step => [step.key, step.when == null ? step.key : conditionOf(step.key)]))
  const nodes: Node[] = []
  const edges: Edge[] = []
  for (const [position, step] of steps.entries()) {
    const next = nextStepOf(steps, position)
    const addEdge = (from: string, target: string, condition?: string) => {
      const to = entries.get(target)
      if (to !== undefined) edges.push({ from, to, ...(condition === undefined ? {} : { condition }) })
    }
    const failure = step.on_failure === 'continue' ? next : step.on_failure
    const routed = failure !== undefined && failure !== FAIL
    const on_error = routed ? ('route' as const) : ('fail' as const)
    if (step.when != null) {
      const id = conditionOf(step.key)
      nodes.push({ id, type: 'condition', expression: step.when, on_error })
      edges.push({ from: id, to: step.key, condition: 'true' })
      addEdge(id, next, 'false')
      if (routed) addEdge(id, failure, 'failed')
    }
    nodes.push({ ...nodeOf(steps, position), on_error })
    if (step.type === 'branch') {
      for (const target of new Set(branchTargets(steps, position))) addEdge(step.key, target, target)
      continue
    }
    addEdge(step.key, next)
    if (routed) addEdge(step.key, failure, 'failed')
    if (step.type !== 'require_approval') continue
    for (const [target, label] of [
      [step.on_rejected, 'rejected'],
      [step.on_expired, 'expired'],
    ] as const)
      if (target !== undefined && target !== FAIL) addEdge(step.key, target, label)
  }
  return { nodes, edges, state_schema: null, input_schema: null }
}

/** Returns the targets of a branch: of its rules and its fallback. */
export const branchTargets = (steps: readonly PlaybookStep[], position: number): string[] => [
  ...(steps[position].rules ?? []).map(({ go_to }) => go_to),
  fallbackOf(steps, position),
]

function nodeOf(steps: readonly PlaybookStep[], position: number): Node {
  const step = steps[position]
  const { key: id, input_mapping } = step
  const machine = { id, ...(step.retry ? { retry: retryOf(step.retry) } : {}) }
  switch (step.type) {
    case 'instruct_agent':
      return {
        ...machine,
        type: 'agent',
        agent_id: step.agent_id,
        ...(input_mapping ? { input_mapping } : { input_mapping: { case: DEFAULT_CASE_INPUT } }),
      }
    case 'call_tool':
      return { ...machine, type: 'tool', tool_id: step.tool_id, operation_id: step.operation_id, input_mapping }
    case 'run_orchestration':
      return { ...machine, type: 'sub_orchestration', orchestration_id: step.orchestration_id, input_mapping }
    case 'ask_decider':
      return {
        ...machine,
        type: DECIDE,
        metadata: { decider_id: step.decider_id },
        input_mapping: input_mapping ?? { case: DEFAULT_CASE_INPUT, input: { var: 'input' } },
      }
    case 'require_approval':
      return {
        id,
        type: 'approval',
        instructions: step.title,
        reasoning: step.reasoning ?? { preserve: step.instructions ?? step.title },
        evidence: step.approval_evidence,
        expires_in: step.expires_in_seconds ?? 86_400,
      }
    case 'wait':
      if (step.event != null)
        return {
          id,
          type: 'human',
          prompt: { preserve: step.title },
          expires_in: step.event.timeout_seconds,
          input_mapping: filterInputs(step.event),
        }
      return step.duration_seconds == null
        ? { id, type: 'delay', until: step.until }
        : { id, type: 'delay', duration: `${step.duration_seconds}s` }
    case 'manual':
      return {
        id,
        type: 'human',
        prompt: { preserve: step.title },
        expires_in: step.timeout_seconds,
        // Evaluated when the step starts.
        ...(step.assignee == null ? {} : { input_mapping: { assignee: step.assignee } }),
      }
    case 'branch':
      return { id, type: 'condition', expression: step.rules?.map(({ when }) => when) }
  }
}

/**
 * Returns the mapping of the paths that the filter of an awaited event reads in addition to the event: their values
 * when the wait starts.
 */
const filterInputs = ({ filter }: AwaitedEvent): Record<string, unknown> =>
  Object.fromEntries(
    pathsOf(filter)
      .filter(path => ROOTS.includes(path.split('.', 1)[0]))
      .map(path => [path, { var: path }]),
  )

const retryOf = ({
  max_attempts,
  backoff_seconds = 0,
  backoff_multiplier = 1,
}: NonNullable<PlaybookStep['retry']>) => ({
  max_attempts,
  backoff: {
    strategy: 'exponential' as const,
    delay_ms: Math.round(backoff_seconds * 1000),
    factor: backoff_multiplier,
    // No delay exceeds a year.
    max_delay_ms: 31_536_000_000,
  },
})
