import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type EvaluationBudget, ExpressionError } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { DispatchKind, Machine, WorkflowState } from '../definition/definition.ts'
import { type TransitionActor, type TransitionRow, transitionRow } from './history.ts'
import type { ActiveDispatch, TaskRow } from './model.ts'

/**
 * Task changes as values. Nothing here reads or writes the database: the caller writes a change only if the row still
 * has the revision that the change was derived from.
 */

/** Dispatch to insert. */
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

/** Event of a change. */
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
  /** Task at the time of the event, if it differs from `after`. */
  row?: TaskRow
}

/** Change of a task with its effects. */
export type TaskChange = {
  before: TaskRow & { project_paused?: boolean }
  after: TaskRow
  history: TransitionRow[]
  /** `clear` deletes the current dispatch. */
  dispatch: NewDispatch | 'clear' | null
  events: TaskEvent[]
  /** Id of a run that the change abandons. */
  cancels: string | null
}

/** Returns a change with no effects except those in `more`. */
export const plainChange = (before: TaskRow, after: TaskRow, more: Partial<TaskChange> = {}): TaskChange => ({
  before,
  after,
  history: [],
  dispatch: null,
  events: [],
  cancels: null,
  ...more,
})

/** Returns the task with `changes`, the next revision and the given update time. */
export const withUpdatedAt = (task: TaskRow, nowText: string, changes: Partial<TaskRow>): TaskRow => ({
  ...task,
  ...changes,
  revision: task.revision + 1,
  updated_at: nowText,
})

export type Move = {
  transition: string
  by: TransitionActor
  /** Principal whose permissions apply to the work that the move starts. */
  authority: PrincipalRecord
  /** Whether automation makes the move, which counts towards the chain limit. */
  automated: boolean
  /** Sealed tool context that replaces the current one. Absent to keep it. */
  context?: string | null
  note?: string | null
  expected_state?: string | null
  /** Whether the required approval was given. */
  approved?: boolean
}

/** Value of `task` in expressions. */
export const taskRoot = ({ id, title, state, status, payload, assignee, last_result }: TaskRow) => ({
  id,
  title,
  state,
  status,
  payload,
  assignee,
  last_result,
})

const ACTIVE_KIND: Record<DispatchKind, ActiveDispatch['kind']> = {
  agent: 'generation',
  orchestration: 'orchestration_run',
  tool: 'tool_call',
  trigger: 'trigger_firing',
}

/** Whether the task has a row of `task_dispatches`. */
const hasDispatch = ({ automation_status }: Pick<TaskRow, 'automation_status'>): boolean =>
  automation_status === 'running' || automation_status === 'paused'

/** Returns `active_dispatch` of the task record for a started dispatch. */
export const activeDispatch = (state: WorkflowState, attempt: number): ActiveDispatch => ({
  kind: ACTIVE_KIND[state.on_enter?.dispatch.kind as DispatchKind],
  id: null,
  status: 'running',
  ...(state.on_enter?.retry ? { attempt } : {}),
})

/**
 * Returns the dispatch of the current state. Its id is derived from the task, the entry into the state and the attempt.
 */
export const dispatchOf = (
  task: Pick<TaskRow, 'id' | 'project_id' | 'entry_seq'>,
  state: WorkflowState,
  { attempt = 1, deferred = false, delay_ms = 0 } = {},
): NewDispatch => ({
  task_id: task.id,
  id: `${task.id}:${task.entry_seq}:${attempt}`,
  project_id: task.project_id,
  entry_seq: task.entry_seq,
  attempt,
  kind: state.on_enter?.dispatch.kind as DispatchKind,
  state: deferred ? 'held' : 'queued',
  delay_ms,
})

/** Returns the change that restarts the dispatch of a task's state. */
export function restartDispatch(
  { clock }: Pick<Services, 'clock'>,
  task: TaskRow,
  state: WorkflowState,
  { authority, depth }: { authority: PrincipalRecord; depth: number },
): TaskChange {
  const isPaused = task.pause_requested_at !== null
  const after = withUpdatedAt(task, clock.now().toISOString(), {
    // Gives the dispatch a new id: outcomes of earlier dispatches are ignored.
    entry_seq: task.entry_seq + 1,
    automation_status: isPaused ? 'paused' : 'running',
    automation_error: null,
    active_dispatch: isPaused ? null : activeDispatch(state, 1),
    automation_chain_depth: depth,
    authority,
  })
  return plainChange(task, after, { dispatch: dispatchOf(after, state, { deferred: isPaused }) })
}

/** Returns a task that has entered `state`, and the dispatch of that state. */
export function enterState(
  task: TaskRow,
  state: WorkflowState,
  nowText: string,
): { row: TaskRow; dispatch: NewDispatch | null } {
  const terminal = state.terminal === true
  const dispatches = !terminal && Boolean(state.on_enter)
  const deferred = dispatches && task.pause_requested_at !== null
  const row: TaskRow = {
    ...task,
    state: state.name,
    status: terminal ? 'closed' : 'open',
    entered_state_at: nowText,
    updated_at: nowText,
    revision: task.revision + 1,
    entry_seq: task.entry_seq + 1,
    active_dispatch: dispatches && !deferred ? activeDispatch(state, 1) : null,
    automation_status: dispatches ? (deferred ? 'paused' : 'running') : null,
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
  return { row, dispatch: dispatches ? dispatchOf(row, state, { deferred }) : null }
}

const raiseConflict = (message: string, meta: Record<string, unknown>): never =>
  raise('TASK_TRANSITION_CONFLICT', { message, meta })

/** @throws TASK_TRANSITION_NOT_FOUND */
export const requireTransition = (machine: Machine, name: string) =>
  machine.transition(name) ?? raise('TASK_TRANSITION_NOT_FOUND', { meta: { transition: name } })

/**
 * Returns the change that a move makes, or `gated` if the move needs an approval first.
 * @throws TASK_TRANSITION_NOT_FOUND, TASK_TRANSITION_CONFLICT, TASK_GUARD_REJECTED, TASK_AUTOMATION_CHAIN_LIMIT,
 *   TASK_AUTOMATION_PROVENANCE_MISSING, SERVICE_NOT_READY if no thread is free
 */
export async function decideMove(
  services: Services,
  machine: Machine,
  task: TaskRow,
  move: Move,
  limit: number,
  nowText: string,
): Promise<TaskChange | 'gated'> {
  const transition = requireTransition(machine, move.transition)
  const { name } = transition
  if (task.status === 'closed') raiseConflict(`Task ${task.id} is closed`, { transition: name, status: task.status })
  if (task.pending_transition !== null && !move.approved)
    raiseConflict(`Transition ${task.pending_transition} is awaiting approval`, {
      transition: name,
      pending_transition: task.pending_transition,
    })
  if (move.expected_state != null && move.expected_state !== task.state)
    raiseConflict(`Task ${task.id} is in state ${task.state}, not ${move.expected_state}`, {
      transition: name,
      from_state: task.state,
    })
  if (!transition.from.includes(task.state))
    raiseConflict(`Transition ${name} is not available in state ${task.state}`, {
      transition: name,
      from_state: task.state,
    })
  if (transition.requires_approval && !move.approved) return 'gated'
  const { kind, id } = move.by
  const root = { task: taskRoot(task), transition: { name }, principal: { kind, id } }
  if (transition.guard && !(await evaluateGuard({ services, project_id: task.project_id }, transition.guard, root)))
    raise('TASK_GUARD_REJECTED', { meta: { transition: name } })
  const depth = move.automated ? task.automation_chain_depth + 1 : 0
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

/** Whether a guard evaluates to a truthy value. False if the evaluation fails or the budget is used up. */
export async function evaluateGuard(
  { services, project_id }: { services: Services; project_id: string },
  expression: unknown,
  root: unknown,
  spent?: EvaluationBudget,
): Promise<boolean> {
  try {
    return Boolean(await evaluate(services, project_id, expression, root, { spent }))
  } catch (error) {
    if (error instanceof ExpressionError) return false
    throw error
  }
}
