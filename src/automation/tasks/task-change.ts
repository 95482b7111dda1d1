import { raise } from '../../core/api/errors.ts'
import { type EvaluationBudget, ExpressionError, evaluate } from '../../core/expressions/evaluate.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { DispatchKind, Machine, WorkflowState } from '../workflows/definition.ts'
import { type TransitionActor, type TransitionRow, transitionRow } from './history.ts'
import type { ActiveDispatch, TaskRow } from './model.ts'

/**
 * What moves of tasks come to, as values: nothing here reads or writes. Whoever decides on a row writes what came of it only
 * while the row is as it was.
 */

/** A dispatch that is to be made. */
export type NewDispatch = {
  task_id: string
  id: string
  project_id: string
  entry_seq: number
  attempt: number
  kind: DispatchKind
  state: 'queued' | 'held'
  /** Milliseconds until it is due. */
  delay_ms: number
}

/** What follows from a change, as an event. */
export type TaskEvent = {
  verb:
    | 'created'
    | 'updated'
    | 'transitioned'
    | 'closed'
    | 'paused'
    | 'resumed'
    | 'approval_failed'
    | 'automation_retrying'
    | 'automation_rejected'
    | 'automation_unrouted'
  extra?: object
  /** The task as it stood then, where it went on in the same change. */
  row?: TaskRow
}

/** A change of a task, with everything that follows from it. */
export type TaskChange = {
  before: TaskRow
  after: TaskRow
  history: TransitionRow[]
  /** `clear` ends the one that is under way. */
  dispatch: NewDispatch | 'clear' | null
  events: TaskEvent[]
  /** A run that nobody waits for any more. */
  cancels: string | null
}

/** A change from which nothing follows but what is given. */
export const plainChange = (before: TaskRow, after: TaskRow, more: Partial<TaskChange> = {}): TaskChange => ({
  before,
  after,
  history: [],
  dispatch: null,
  events: [],
  cancels: null,
  ...more,
})

/** A task with changes that are written as one, at a time. */
export const withUpdatedAt = (task: TaskRow, nowText: string, changes: Partial<TaskRow>): TaskRow => ({
  ...task,
  ...changes,
  revision: task.revision + 1,
  updated_at: nowText,
})

export type Move = {
  transition: string
  by: TransitionActor
  /** Whose rights what follows has. */
  authority: PrincipalRecord
  /** Whether a machine made the move. */
  machine: boolean
  /** The sealed context that takes the place of the task's; absent where that stays. */
  context?: string | null
  note?: string | null
  expected_state?: string | null
  /** The gate was passed. */
  approved?: boolean
}

/** What expressions read as `task`. */
export const taskRoot = ({ id, title, state, status, payload, assignee, last_result }: TaskRow) => ({
  id,
  title,
  state,
  status,
  payload,
  assignee,
  last_result,
})

const ACTIVE: Record<DispatchKind, ActiveDispatch['kind']> = {
  agent: 'generation',
  orchestration: 'orchestration_run',
  tool: 'tool_call',
  trigger: 'trigger_firing',
}

/** Whether the task has a row of `task_dispatches`. */
export const hasDispatch = ({ automation_status }: Pick<TaskRow, 'automation_status'>): boolean =>
  automation_status === 'running' || automation_status === 'paused'

/** What the record shows of a dispatch. */
export const activeDispatch = (state: WorkflowState, attempt: number, id: string | null = null): ActiveDispatch => ({
  kind: ACTIVE[state.on_enter?.dispatch.kind as DispatchKind],
  id,
  status: 'running',
  ...(state.on_enter?.retry ? { attempt } : {}),
})

/** The dispatch of the state that a task is in. */
export const dispatchOf = (
  task: Pick<TaskRow, 'id' | 'project_id' | 'entry_seq'>,
  state: WorkflowState,
  { attempt = 1, held = false, delay_ms = 0 } = {},
): NewDispatch => ({
  task_id: task.id,
  id: `${task.id}:${task.entry_seq}:${attempt}`,
  project_id: task.project_id,
  entry_seq: task.entry_seq,
  attempt,
  kind: state.on_enter?.dispatch.kind as DispatchKind,
  state: held ? 'held' : 'queued',
  delay_ms,
})

/** A task as it is once it has come to a state. */
export function enterState(
  task: TaskRow,
  state: WorkflowState,
  nowText: string,
): { row: TaskRow; dispatch: NewDispatch | null } {
  const terminal = state.terminal === true
  const dispatches = !terminal && Boolean(state.on_enter)
  const held = dispatches && task.pause_requested_at !== null
  const row: TaskRow = {
    ...task,
    state: state.name,
    status: terminal ? 'closed' : 'open',
    entered_state_at: nowText,
    updated_at: nowText,
    revision: task.revision + 1,
    entry_seq: task.entry_seq + 1,
    active_dispatch: dispatches && !held ? activeDispatch(state, 1) : null,
    automation_status: dispatches ? (held ? 'paused' : 'running') : null,
    automation_error: null,
    pending_transition: null,
    pending_approval_id: null,
    gate: null,
    gate_context: null,
    stalls_at:
      terminal || state.stalled_after == null
        ? null
        : new Date(new Date(nowText).getTime() + state.stalled_after * 1000).toISOString(),
    context: terminal ? null : task.context,
  }
  return { row, dispatch: dispatches ? dispatchOf(row, state, { held }) : null }
}

const conflict = (message: string, meta: Record<string, unknown>): never =>
  raise('TASK_TRANSITION_CONFLICT', { message, meta })

/** The transition of a name. Raises TASK_TRANSITION_NOT_FOUND. */
export const transitionOf = (machine: Machine, name: string) =>
  machine.transition(name) ?? raise('TASK_TRANSITION_NOT_FOUND', { meta: { transition: name } })

/**
 * What a move of a task comes to. `gated`: somebody has to approve it first.
 * @throws TASK_TRANSITION_NOT_FOUND, TASK_TRANSITION_CONFLICT, TASK_GUARD_REJECTED, TASK_AUTOMATION_CHAIN_LIMIT,
 *   TASK_AUTOMATION_PROVENANCE_MISSING
 */
export function decideMove(
  machine: Machine,
  task: TaskRow,
  move: Move,
  limit: number,
  nowText: string,
): TaskChange | 'gated' {
  const transition = transitionOf(machine, move.transition)
  const { name } = transition
  if (task.status === 'closed') conflict('The task is closed', { transition: name, status: task.status })
  if (task.pending_transition !== null && !move.approved)
    conflict('A transition waits for approval', { transition: name, pending_transition: task.pending_transition })
  if (move.expected_state != null && move.expected_state !== task.state)
    conflict('The task is in another state', { transition: name, from_state: task.state })
  if (!transition.from.includes(task.state))
    conflict(`The transition does not lead out of the state ${task.state}`, {
      transition: name,
      from_state: task.state,
    })
  if (transition.requires_approval && !move.approved) return 'gated'
  const { kind, id } = move.by
  const root = { task: taskRoot(task), transition: { name }, principal: { kind, id } }
  if (transition.guard && !evaluateGuard(transition.guard, root))
    raise('TASK_GUARD_REJECTED', { meta: { transition: name } })
  const depth = move.machine ? task.automation_chain_depth + 1 : 0
  if (depth > limit) raise('TASK_AUTOMATION_CHAIN_LIMIT', { meta: { transition: name, task_id: task.id, limit } })
  if (kind === 'automation' && !hasProvenance(move.by)) raise('TASK_AUTOMATION_PROVENANCE_MISSING')
  const moving: TaskRow = {
    ...task,
    authority: move.authority,
    automation_chain_depth: depth,
    ...(move.context === undefined ? {} : { context: move.context }),
  }
  const { row, dispatch } = enterState(moving, machine.state(transition.to) as WorkflowState, nowText)
  const { active_dispatch } = task
  return {
    before: task,
    after: row,
    history: [
      transitionRow(move.by, {
        task_id: task.id,
        from_state: task.state,
        to_state: row.state,
        transition: name,
        note: move.note ?? null,
        seq: row.revision,
        created_at: nowText,
      }),
    ],
    dispatch: dispatch ?? (hasDispatch(task) ? 'clear' : null),
    events: [
      { verb: 'transitioned', extra: { transition: name, from_state: task.state } },
      ...(row.status === 'closed' ? [{ verb: 'closed' as const }] : []),
    ],
    cancels:
      active_dispatch?.kind === 'orchestration_run' && active_dispatch.status === 'running' ? active_dispatch.id : null,
  }
}

const hasProvenance = ({ id, cause }: TransitionActor): boolean =>
  id !== null || cause?.column === 'generation_id' || cause?.column === 'orchestration_run_id'

/** Whether a condition holds; one that cannot be evaluated does not, nor one that others have left no budget for. */
export function evaluateGuard(expression: unknown, root: unknown, spent?: EvaluationBudget): boolean {
  try {
    return Boolean(evaluate(expression, root, spent))
  } catch (error) {
    if (error instanceof ExpressionError) return false
    throw error
  }
}
