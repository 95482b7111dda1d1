/** Types of playbook steps. */
export const STEP_TYPES = [
  'instruct_agent',
  'call_tool',
  'run_orchestration',
  'ask_decider',
  'require_approval',
  'wait',
  'manual',
  'branch',
] as const
export type StepType = (typeof STEP_TYPES)[number]

/** Step types executed without people. */
export const MACHINE_TYPES = ['instruct_agent', 'call_tool', 'run_orchestration', 'ask_decider'] as const

/** Reserved step keys: complete or fail the execution. */
export const END = 'end'
export const FAIL = 'fail'
export const RESERVED_KEYS: readonly string[] = [END, FAIL]

export type BranchRule = { when: unknown; go_to: string }

/** Event that a step waits for. `filter` reads the event and the values that expressions of steps read. */
export type AwaitedEvent = { pattern: string; filter?: unknown; timeout_seconds?: number | null }
export type RequiredEvidence = { name: string; kind: 'note' | 'file' | 'link' }

/** Retry policy of a step. */
export type StepRetry = { max_attempts: number; backoff_seconds?: number; backoff_multiplier?: number }

/** A step; its fields depend on its type. Stored playbooks have been validated. */
export type PlaybookStep = {
  key: string
  title: string
  instructions?: string | null
  type: StepType
  when?: unknown
  next?: string | null
  on_failure?: string
  retry?: StepRetry | null
  case_writes?: Record<string, unknown> | null
  capture?: boolean
  agent_id?: string
  tool_id?: string
  operation_id?: string | null
  orchestration_id?: string
  decider_id?: string
  input_mapping?: Record<string, unknown> | null
  reasoning?: unknown
  approval_evidence?: Record<string, unknown> | null
  expires_in_seconds?: number
  on_rejected?: string
  on_expired?: string
  duration_seconds?: number
  until?: unknown
  event?: AwaitedEvent | null
  assignee?: unknown
  result_schema?: object | null
  required_evidence?: RequiredEvidence[] | null
  due_seconds?: number | null
  timeout_seconds?: number | null
  skippable?: boolean
  rules?: BranchRule[]
  otherwise?: string | null
}

/** Versioned part of a playbook. */
export type PlaybookDefinition = {
  steps: PlaybookStep[]
  case_schema: Record<string, unknown> | null
  input_schema: Record<string, unknown> | null
  outcome: unknown
  resolve_case: boolean
}

export const playbookFields = ['steps', 'case_schema', 'input_schema', 'outcome', 'resolve_case'] as const

/** Returns a step without unset fields. */
const structural = (step: object): Record<string, unknown> =>
  Object.fromEntries(Object.entries(step).filter(([, value]) => value !== null && value !== undefined))

/** Returns a definition for comparison, with its steps by key. */
export function comparablePlaybook({ steps, ...others }: PlaybookDefinition): object {
  const byKey = steps.map((step, position): [string, object] => [step.key, { ...structural(step), position }])
  return { steps: Object.fromEntries(byKey), ...others }
}

/** Returns the key of the step after a completed or skipped step, or `end`. */
export const nextStepOf = (steps: readonly PlaybookStep[], position: number): string =>
  steps[position].next ?? steps[position + 1]?.key ?? END

/** Returns the target of a branch if no rule matches. */
export const fallbackOf = (steps: readonly PlaybookStep[], position: number): string =>
  steps[position].otherwise ?? steps[position + 1]?.key ?? END

/** Whether the output of a step is stored as evidence of the case. */
export const isCaptured = ({ type, capture }: PlaybookStep): boolean =>
  capture ?? (type === 'ask_decider' || type === 'require_approval' || type === 'manual')
