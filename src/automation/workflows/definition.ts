import { canonicalJson } from '../../core/api/canonical.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'

/** What entering a state may start. */
export const DISPATCH_KINDS = ['agent', 'orchestration', 'tool', 'trigger'] as const
export type DispatchKind = (typeof DISPATCH_KINDS)[number]

/** The field of a dispatch that names its target. */
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

/** `backoff_seconds` before the second attempt, times `backoff_multiplier` before each later one. */
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

/** What a version is of. One that was stored has been validated. */
export type WorkflowDefinition = {
  states: WorkflowState[]
  transitions: Transition[]
  payload_schema: Record<string, unknown> | null
}

export const workflowFields = ['states', 'transitions', 'payload_schema'] as const

/** What a definition is refused for where it is larger. */
export const MAX_STATES = 100
export const MAX_TRANSITIONS = 300
export const MAX_WORKFLOW_BYTES = 256 * 1024

const structureOf = ({ states, transitions, payload_schema }: WorkflowDefinition): string =>
  canonicalJson({ states, transitions, payload_schema })

/** Whether two definitions are the same but for the order of keys. */
export const isSameWorkflow = (left: WorkflowDefinition, right: WorkflowDefinition): boolean =>
  structureOf(left) === structureOf(right)

const byName = (items: readonly { name: string }[]): ReadonlyMap<string, object> =>
  new Map(items.map(({ name, ...item }) => [name, item]))

/** A definition as it is compared with another: states and transitions by their names, in their order. */
export const comparableWorkflow = ({ states, transitions, payload_schema }: WorkflowDefinition): object => ({
  states: byName(states),
  transitions: byName(transitions),
  payload_schema,
})

/** A definition for looking things up in it. */
export class Machine {
  readonly definition: WorkflowDefinition
  /** Who wrote the version; null where that is not known. */
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

  /** The transitions that lead out of a state. */
  from(state: string): Transition[] {
    return this.definition.transitions.filter(({ from }) => from.includes(state))
  }
}
