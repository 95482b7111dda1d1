import type { PrincipalRecord } from '#core/iam/caller.ts'

/** Kinds of work that entering a state can dispatch. */
export const DISPATCH_KINDS = ['agent', 'orchestration', 'tool', 'trigger'] as const
export type DispatchKind = (typeof DISPATCH_KINDS)[number]

/** Returns the field of a dispatch that references its target. */
export const targetField = (kind: DispatchKind) => `${kind}_id` as const

export type Dispatch = {
  kind: DispatchKind
  agent_id?: string
  orchestration_id?: string
  tool_id?: string
  trigger_id?: string
  operation_id?: string | null
  input_mapping?: Record<string, unknown> | null
  payload_writes?: Record<string, unknown> | null
}

/**
 * Retry policy. `backoff_seconds`: delay before the second attempt; `backoff_multiplier`: factor of each later delay.
 */
export type RetryPolicy = { max_attempts: number; backoff_seconds?: number; backoff_multiplier?: number }

export type OnEnter = {
  dispatch: Dispatch
  retry?: RetryPolicy | null
  on_complete?: { when: unknown; transition: string }[] | null
  on_failure?: string | null
}

export type WorkflowState = {
  name: string
  initial?: boolean
  terminal?: boolean
  kind?: 'human' | null
  on_enter?: OnEnter | null
  stalled_after?: number | null
}

export type Transition = {
  name: string
  from: string[]
  to: string
  guard?: Record<string, unknown> | null
  requires_approval?: boolean
}

/** Versioned part of a workflow. Stored definitions have been validated. */
export type WorkflowDefinition = {
  states: WorkflowState[]
  transitions: Transition[]
  payload_schema: Record<string, unknown> | null
}

export const workflowFields = ['states', 'transitions', 'payload_schema'] as const

/** Size limits of a definition. */
export const MAX_STATES = 100
export const MAX_TRANSITIONS = 300
export const MAX_WORKFLOW_BYTES = 256 * 1024

const byName = (items: readonly { name: string }[]): ReadonlyMap<string, object> =>
  new Map(items.map(({ name, ...item }) => [name, item]))

/** Returns a definition for comparison: states and transitions by name, in order. */
export const comparableWorkflow = ({ states, transitions, payload_schema }: WorkflowDefinition): object => ({
  states: byName(states),
  transitions: byName(transitions),
  payload_schema,
})

/** A definition with lookups by name. */
export class Machine {
  readonly definition: WorkflowDefinition
  /** Author of the version; null if unknown. */
  readonly author: PrincipalRecord | null
  readonly initial: WorkflowState
  readonly #states: ReadonlyMap<string, WorkflowState>
  readonly #transitions: ReadonlyMap<string, Transition>

  constructor(definition: WorkflowDefinition, author: PrincipalRecord | null) {
    this.definition = definition
    this.author = author
    this.initial = definition.states.find(({ initial }) => initial === true) as WorkflowState
    this.#states = new Map(definition.states.map(state => [state.name, state]))
    this.#transitions = new Map(definition.transitions.map(transition => [transition.name, transition]))
  }

  state(name: string): WorkflowState | undefined {
    return this.#states.get(name)
  }

  transition(name: string): Transition | undefined {
    return this.#transitions.get(name)
  }

  /** Returns the transitions from a state. */
  from(state: string): Transition[] {
    return this.definition.transitions.filter(({ from }) => from.includes(state))
  }
}
