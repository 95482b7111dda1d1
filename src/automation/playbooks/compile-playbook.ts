import { pathsOf } from '../../core/expressions/references.ts'
import type { Edge, GraphDefinition as Graph, Node } from '../orchestrations/definition.ts'
import { DECIDE } from '../orchestrations/definition.ts'
import {
  type AwaitedEvent,
  FAIL,
  fallbackOf,
  nextStepOf,
  type PlaybookDefinition,
  type PlaybookStep,
} from './definition.ts'

/**
 * A playbook as the graph that its executions run. A step is a node of its key; one with `when` has a condition before it.
 * Edges by themselves activate their target, so that paths meet again where they lead to one step.
 */

/** The node that judges `when` of a step. */
export const conditionOf = (key: string): string => `${key}__when`

/** The key of the step that a node belongs to, and whether it is its condition. */
export function stepOf(nodeId: string): { key: string; isCondition: boolean } {
  const isCondition = nodeId.endsWith(CONDITION)
  return { key: isCondition ? nodeId.slice(0, -CONDITION.length) : nodeId, isCondition }
}
const CONDITION = '__when'

/** What expressions of steps read. */
const ROOTS: readonly string[] = ['case', 'input', 'steps', 'execution']

/** What machines are told where a step does not say it. */
const CASE = {
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
    const lead = (from: string, target: string, condition?: string) => {
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
      lead(id, next, 'false')
      if (routed) lead(id, failure, 'failed')
    }
    nodes.push({ ...nodeOf(steps, position), on_error })
    if (step.type === 'branch') {
      for (const target of new Set(branchTargets(steps, position))) lead(step.key, target, target)
      continue
    }
    lead(step.key, next)
    if (routed) lead(step.key, failure, 'failed')
    if (step.type !== 'require_approval') continue
    for (const [target, label] of [
      [step.on_rejected, 'rejected'],
      [step.on_expired, 'expired'],
    ] as const)
      if (target !== undefined && target !== FAIL) lead(step.key, target, label)
  }
  return { nodes, edges, state_schema: null, input_schema: null }
}

/** Where a branch leads to: by its rules, and where none holds. */
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
        ...(input_mapping ? { input_mapping } : { input_mapping: { case: CASE } }),
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
        input_mapping: input_mapping ?? { case: CASE, input: { var: 'input' } },
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
          input_mapping: readBeside(step.event),
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
        // It is resolved where the step begins.
        ...(step.assignee == null ? {} : { input_mapping: { assignee: step.assignee } }),
      }
    case 'branch':
      return { id, type: 'condition', expression: step.rules?.map(({ when }) => when) }
  }
}

/** What the filter of an awaited event reads beside its envelope, by paths: as it is when the wait begins. */
const readBeside = ({ filter }: AwaitedEvent): Record<string, unknown> =>
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
    // No wait is longer than a year, whatever it has grown to.
    max_delay_ms: 31_536_000_000,
  },
})
