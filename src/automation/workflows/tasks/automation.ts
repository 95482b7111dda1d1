import { AppError, type Problem, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { ExpressionError, freshBudget } from '#core/expressions/evaluate.ts'
import { evaluateMapping } from '#core/expressions/evaluation.ts'
import type { Machine, OnEnter, WorkflowState } from '../definition/definition.ts'
import { automationBy, type Cause } from './history.ts'
import { PAYLOAD_BYTES, type TaskRow } from './model.ts'
import { PAYLOAD_SIZE_PROBLEM, payloadInvalidError } from './payload.ts'
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

/** Outcome of a task dispatch. */
export type AutomationOutcome =
  | { ok: true; result: unknown; cause: Cause | null }
  /** `final`: not retried. `filed`: the failed work has already filed an exception. */
  | { ok: false; error: RecordedFailure; cause: Cause | null; final?: boolean; filed?: boolean }

const MAX_RESULT_BYTES = 4 * 1024 * 1024

/** Change that follows from an outcome, without a transition that needs approval first. */
export type DispatchRoute = {
  change: TaskChange
  /** Name of the transition that needs approval. */
  gate: string | null
  /** Whether the task stays in its state as failed and no exception has been filed. */
  unattended: boolean
}

type RoutingContext = {
  services: Services
  machine: Machine
  limit: number
  nowText: string
  /** Validates a payload against the schema of the pinned version. */
  problems: (payload: Record<string, unknown>) => Promise<Problem[]>
}

/** Hides the details of an expression error: they belong to the author of the workflow. */
export const hideExpressionError = (error: unknown): unknown =>
  error instanceof ExpressionError ? new AppError('INTERNAL_ERROR', { cause: error }) : error

/**
 * Returns the change that follows from the outcome of a dispatch, which is removed: the stored result, a retry, or a
 * transition.
 */
export async function decideOutcome(
  context: RoutingContext,
  task: TaskRow,
  attempt: number,
  outcome: AutomationOutcome,
): Promise<DispatchRoute> {
  const state = context.machine.state(task.state) as WorkflowState
  const onEnter = state.on_enter as OnEnter
  const settled = outcome.ok ? await applyResult(context, task, onEnter, outcome) : outcome
  if ('row' in settled) return await routeSuccess(context, task, settled.row, onEnter, outcome.cause)
  const { error, cause, final } = settled
  const max_attempts = onEnter.retry?.max_attempts ?? 1
  if (!final && attempt < max_attempts) {
    const { backoff_seconds = 0, backoff_multiplier = 1 } = onEnter.retry ?? {}
    const ids = { generation_id: null, orchestration_run_id: null, ...(cause && { [cause.column]: cause.id }) }
    const { generation_id, orchestration_run_id } = ids
    const extra = { attempt, max_attempts, error, generation_id, orchestration_run_id }
    const after = withUpdatedAt(task, context.nowText, { active_dispatch: activeDispatch(state, attempt + 1) })
    return plainRoute(
      plainChange(task, after, {
        dispatch: dispatchOf(task, state, {
          attempt: attempt + 1,
          delay_ms: backoff_seconds * backoff_multiplier ** (attempt - 1) * 1000,
        }),
        events: [{ verb: 'automation_retrying', extra }],
      }),
    )
  }
  const failed = withUpdatedAt(task, context.nowText, {
    active_dispatch: task.active_dispatch && { ...task.active_dispatch, status: 'failed' },
    automation_status: 'failed',
    automation_error: error,
  })
  if (onEnter.on_failure == null)
    return { ...plainRoute(plainChange(task, failed)), unattended: settled.filed !== true }
  return routeTransition(context, task, failed, {
    transition: onEnter.on_failure,
    cause,
    refused: failed,
    result: null,
  })
}

const plainRoute = (change: TaskChange): DispatchRoute => ({ change, gate: null, unattended: false })

/** Returns the task with the result and its payload writes, or a final failure if the result cannot be stored. */
async function applyResult(
  context: RoutingContext,
  task: TaskRow,
  { dispatch }: OnEnter,
  { result, cause }: Extract<AutomationOutcome, { ok: true }>,
): Promise<{ row: TaskRow } | Extract<AutomationOutcome, { ok: false }>> {
  try {
    const last_result = storableValue(result ?? null)
    if (Buffer.byteLength(JSON.stringify(last_result)) > MAX_RESULT_BYTES)
      throw new AppError('TASK_PAYLOAD_INVALID', { message: 'The result is larger than 4 MiB' })
    const written = await evaluateMapping(
      context.services,
      task.project_id,
      dispatch.payload_writes,
      { task: taskRoot(task), result: last_result },
      { bytes: PAYLOAD_BYTES, tooLarge: () => payloadInvalidError([PAYLOAD_SIZE_PROBLEM]) },
    )
    const payload =
      Object.keys(written).length === 0
        ? task.payload
        : { ...task.payload, ...(storableValue(written) as Record<string, unknown>) }
    if (payload !== task.payload) {
      const problems = await context.problems(payload)
      if (problems.length > 0) throw payloadInvalidError(problems)
    }
    return {
      row: withUpdatedAt(task, context.nowText, {
        active_dispatch: task.active_dispatch && { ...task.active_dispatch, status: 'completed' },
        automation_status: 'completed',
        automation_error: null,
        last_result,
        result_of: cause?.id ?? null,
        payload,
      }),
    }
  } catch (thrown) {
    const error = hideExpressionError(thrown)
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY') throw error
    return { ok: false, error: error.recorded(), cause, final: true }
  }
}

async function routeSuccess(
  context: RoutingContext,
  before: TaskRow,
  after: TaskRow,
  { on_complete }: OnEnter,
  cause: Cause | null,
): Promise<DispatchRoute> {
  const { last_result: result } = after
  const root = { task: taskRoot(after), result }
  const spent = freshBudget()
  const evaluated = { services: context.services, project_id: after.project_id }
  let rule: NonNullable<OnEnter['on_complete']>[number] | undefined
  for (const each of on_complete ?? []) {
    if (!(await evaluateGuard(evaluated, each.when, root, spent))) continue
    rule = each
    break
  }
  if (!rule)
    return plainRoute(plainChange(before, after, { events: [{ verb: 'automation_unrouted', extra: { result } }] }))
  return routeTransition(context, before, after, {
    transition: rule.transition,
    cause,
    refused: { ...after, automation_status: 'unrouted' },
    result,
  })
}

/**
 * Applies a transition to a task whose dispatch has settled. A refused transition leaves the task in its state, as
 * `refused`.
 */
async function routeTransition(
  { services, machine, limit, nowText }: RoutingContext,
  before: TaskRow,
  after: TaskRow,
  {
    transition,
    cause,
    refused,
    result,
  }: { transition: string; cause: Cause | null; refused: TaskRow; result: unknown },
): Promise<DispatchRoute> {
  try {
    // Result and transition are written as one change, which raises the revision once.
    const settled = { ...after, revision: before.revision }
    const move = { transition, by: automationBy(cause), authority: before.authority, automated: true }
    const change = await decideMove(services, machine, settled, move, limit, nowText)
    if (change === 'gated') return { ...plainRoute(plainChange(before, after)), gate: transition }
    return plainRoute({ ...change, before, cancels: null })
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY') throw error
    const extra = { transition, error_code: error.code, result }
    return plainRoute(plainChange(before, refused, { events: [{ verb: 'automation_rejected', extra }] }))
  }
}
