import { AppError, type Problem, type RecordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { ExpressionError, freshBudget } from '../../core/expressions/evaluate.ts'
import { evaluateMapping } from '../../core/expressions/mapping.ts'
import type { Machine, OnEnter, WorkflowState } from '../workflows/definition.ts'
import { automationBy, type Cause } from './history.ts'
import { PAYLOAD_BYTES, type TaskRow } from './model.ts'
import { PAYLOAD_TOO_BIG, payloadInvalid } from './payload.ts'
import {
  activeDispatch,
  decideMove,
  dispatchOf,
  evaluateGuard,
  plainChange,
  type TaskChange,
  taskRoot,
  withUpdatedAt,
} from './task-change.ts'

/** What a dispatch came to, and where the task goes from there. */

export type AutomationOutcome =
  | { ok: true; result: unknown; cause: Cause | null }
  /** `final`: not made again. `filed`: whoever failed has filed its own exception. */
  | { ok: false; error: RecordedFailure; cause: Cause | null; final?: boolean; filed?: boolean }

const MAX_RESULT_BYTES = 4 * 1024 * 1024

/** The step that an outcome makes, or all of it but a transition that somebody has to approve first. */
export type DispatchRoute = {
  step: TaskChange
  /** A transition that waits for approval. */
  gate: string | null
  /** The task parks as failed, and nobody has been told. */
  unattended: boolean
}

type Deciding = {
  machine: Machine
  limit: number
  nowText: string
  /** What is wrong with a payload by the schema of the pinned version. */
  problems: (payload: Record<string, unknown>) => Promise<Problem[]>
}

/** The failure of an expression; what is wrong with it is in the definition, and not shown. */
export const expressionFailed = (error: unknown): unknown =>
  error instanceof ExpressionError ? new AppError('INTERNAL_ERROR', { cause: error }) : error

/**
 * Decides what follows from the outcome of the dispatch of a task: the result, the next try, or a transition. The task is
 * in the state that made it.
 */
export async function decideOutcome(
  deciding: Deciding,
  task: TaskRow,
  attempt: number,
  given: AutomationOutcome,
): Promise<DispatchRoute> {
  const state = deciding.machine.state(task.state) as WorkflowState
  const onEnter = state.on_enter as OnEnter
  const settled = given.ok ? await completed(deciding, task, onEnter, given) : given
  if ('row' in settled) return routeSuccess(deciding, task, settled.row, onEnter, given.cause)
  const { error, cause, final } = settled
  const max_attempts = onEnter.retry?.max_attempts ?? 1
  if (!final && attempt < max_attempts) {
    const { backoff_seconds = 0, backoff_multiplier = 1 } = onEnter.retry ?? {}
    const ids = { generation_id: null, orchestration_run_id: null, ...(cause && { [cause.column]: cause.id }) }
    const { generation_id, orchestration_run_id } = ids
    const extra = { attempt, max_attempts, error, generation_id, orchestration_run_id }
    const after = withUpdatedAt(task, deciding.nowText, { active_dispatch: activeDispatch(state, attempt + 1) })
    return plain(
      plainChange(task, after, {
        dispatch: dispatchOf(task, state, {
          attempt: attempt + 1,
          delay_ms: backoff_seconds * backoff_multiplier ** (attempt - 1) * 1000,
        }),
        events: [{ verb: 'automation_retrying', extra }],
      }),
    )
  }
  const failed = withUpdatedAt(task, deciding.nowText, {
    active_dispatch: task.active_dispatch && { ...task.active_dispatch, status: 'failed' },
    automation_status: 'failed',
    automation_error: error,
  })
  if (onEnter.on_failure == null) return { ...plain(parked(task, failed)), unattended: settled.filed !== true }
  return fire(deciding, task, failed, { transition: onEnter.on_failure, cause, refused: failed, result: null })
}

const plain = (step: TaskChange): DispatchRoute => ({ step, gate: null, unattended: false })

const parked = (before: TaskRow, after: TaskRow, events: TaskChange['events'] = []): TaskChange =>
  plainChange(before, after, { dispatch: 'clear', events })

/** The task with the result of a dispatch and what that writes to the payload; a failure where it cannot be kept. */
async function completed(
  deciding: Deciding,
  task: TaskRow,
  { dispatch }: OnEnter,
  { result, cause }: Extract<AutomationOutcome, { ok: true }>,
): Promise<{ row: TaskRow } | Extract<AutomationOutcome, { ok: false }>> {
  try {
    const last_result = storableValue(result ?? null)
    if (Buffer.byteLength(JSON.stringify(last_result)) > MAX_RESULT_BYTES)
      throw new AppError('TASK_PAYLOAD_INVALID', { message: 'The result is larger than 4 MiB' })
    const written = evaluateMapping(
      dispatch.payload_writes,
      { task: taskRoot(task), result: last_result },
      { bytes: PAYLOAD_BYTES, tooLarge: () => payloadInvalid([PAYLOAD_TOO_BIG]) },
    )
    const payload =
      Object.keys(written).length === 0
        ? task.payload
        : { ...task.payload, ...(storableValue(written) as Record<string, unknown>) }
    if (payload !== task.payload) {
      const problems = await deciding.problems(payload)
      if (problems.length > 0) throw payloadInvalid(problems)
    }
    return {
      row: withUpdatedAt(task, deciding.nowText, {
        active_dispatch: task.active_dispatch && { ...task.active_dispatch, status: 'completed' },
        automation_status: 'completed',
        automation_error: null,
        last_result,
        result_of: cause?.id ?? null,
        payload,
      }),
    }
  } catch (thrown) {
    const error = expressionFailed(thrown)
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY') throw error
    return { ok: false, error: error.recorded(), cause, final: true }
  }
}

function routeSuccess(
  deciding: Deciding,
  before: TaskRow,
  after: TaskRow,
  { on_complete }: OnEnter,
  cause: Cause | null,
): DispatchRoute {
  const { last_result: result } = after
  const root = { task: taskRoot(after), result }
  const spent = freshBudget()
  const rule = (on_complete ?? []).find(({ when }) => evaluateGuard(when, root, spent))
  if (!rule) return plain(parked(before, after, [{ verb: 'automation_unrouted', extra: { result } }]))
  return fire(deciding, before, after, {
    transition: rule.transition,
    cause,
    refused: { ...after, automation_status: 'unrouted' },
    result,
  })
}

/** Moves a task whose dispatch has settled, or leaves it where it is when the move is refused. */
function fire(
  { machine, limit, nowText }: Deciding,
  before: TaskRow,
  after: TaskRow,
  {
    transition,
    cause,
    refused,
    result,
  }: { transition: string; cause: Cause | null; refused: TaskRow; result: unknown },
): DispatchRoute {
  try {
    // One change: the row counts it once.
    const settled = { ...after, revision: before.revision }
    const move = { transition, by: automationBy(cause), authority: before.authority, machine: true }
    const step = decideMove(machine, settled, move, limit, nowText)
    if (step === 'gated') return { ...plain(parked(before, after)), gate: transition }
    return plain({ ...step, before, dispatch: step.dispatch ?? 'clear', cancels: null })
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    const extra = { transition, error_code: error.code, result }
    return plain(parked(before, refused, [{ verb: 'automation_rejected', extra }]))
  }
}
