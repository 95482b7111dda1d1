import { recordActivityInTx } from '#control/activity/record.ts'
import { recordUsageInTx, recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import { priceUsage } from '#control/usage/price-usage.ts'
import { AppError, type RecordedFailure, raise, recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { evaluateMapping } from '#core/expressions/evaluation.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import { type PrincipalRecord, triggerChainOf } from '#core/iam/caller.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import { UNLIMITED, withoutRetries } from '#core/work/retry.ts'
import { work } from '#core/work/work.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { isRepeatable } from '#execution/approvals/tool.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { lostCall } from '#execution/tools/metering.ts'
import { type ResolvedTool, resolveSharedTool } from '#execution/tools/resolve.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { lockPauseState } from '#identity/projects/store.ts'
import type { Dispatch, Machine } from '../definition/definition.ts'
import { pinnedMachine } from '../definition/pinned-workflow.ts'
import { type AutomationOutcome, hideExpressionError } from './automation.ts'
import { taskToolContext } from './context.ts'
import type { TaskRow } from './model.ts'
import { TASK_DISPATCH, wakeDispatch } from './queue.ts'
import { type DispatchAttempt, routeOutcome, settleDispatch, writeRoute } from './settle.ts'
import { dispatchColumns, dispatchedTask, hasDueTasks, taskUpdate } from './store.ts'
import { sweepTasks } from './sweep.ts'
import { lockResult, startedTargets } from './targets.ts'
import { taskRoot, withUpdatedAt } from './task-change.ts'
import { settlePendingTransition } from './transition-approval.ts'

/** Lost workers after which a tool call is abandoned. */
const MAX_LOSSES = 5

/** Delays after errors that postpone the start of work, in milliseconds. A paused project defers the next attempt. */
const POSTPONED_MS: Record<string, number> = { PROJECT_PAUSED: 0, SERVICE_NOT_READY: 1000 }

type StateDispatch = { machine: Machine; dispatch: Dispatch; authority: PrincipalRecord }

/** Executes the dispatch of a task's state: starts its work and settles with its outcome, or calls a tool. */
export const dispatchWork = work({
  name: TASK_DISPATCH,
  concern: 'orchestration',
  entity: dispatchedTask,
  table: 'task_dispatches',
  entityColumn: 'task_id',
  columns: dispatchColumns,
  ids: ({ id, project_id }, claim) => ({ task_id: id, dispatch_id: claim.id, project_id }),
  leaseSeconds: config => config.TASKS_DISPATCH_LEASE_SECONDS,
  concurrency: config => config.TASK_WORKER_CONCURRENCY,
  // A retry by the policy of the state is another dispatch. Lost tool calls are limited where they are metered.
  retry: withoutRetries(UNLIMITED.losses),
  deferral: (error, { kind }) =>
    kind !== 'tool' && error instanceof AppError ? (POSTPONED_MS[error.code] ?? null) : null,
  lockFirst: lockResult,
  sweep: {
    seconds: config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    // One query per interval while nothing is due, without a message.
    dueIf: hasDueTasks,
    also: sweepTasks,
  },
  span: ({ entity, claim }) => ({
    name: `task ${entity.state}`,
    unit: true,
    // A result arrives after work that may have waited for a person.
    from: { context: claim.trace_context, at: entity.updated_at, linked: claim.result_id !== null },
    shared: { [MUSTER.project]: entity.project_id },
    attributes: { [MUSTER.task]: entity.id, [MUSTER.dispatch]: claim.kind },
  }),
  chain: ({ authority }) => triggerChainOf(authority),
  async run(attempt) {
    const { services, entity, claim, suspend } = attempt
    const state = await requireDispatch(services, services.pool, entity)
    if (claim.kind !== 'tool' && claim.result_id !== null)
      return settleResult(attempt, state, claim.kind, claim.result_id)
    if (entity.pause_requested_at !== null || entity.project_paused) {
      await suspend((tx, task) => deferDispatch(tx, services, task, claim.id))
      return { outcome: 'deferred' }
    }
    return claim.kind === 'tool' ? callDispatchTool(attempt, state) : startTarget(attempt, state, claim.kind)
  },
  async fail(tx, { services, entity, claim, error }) {
    const { machine, dispatch } = await requireDispatch(services, tx, entity)
    const outcome = failureOf(error, claim.kind === 'tool' ? dispatch : null)
    await writeRoute(tx, services, await routeOutcome(services, machine, entity, claim.attempt, outcome))
    return undefined
  },
})

/** @param called dispatch of the tool that was called */
const failureOf = (error: unknown, called: Dispatch | null): AutomationOutcome => ({
  ok: false,
  error: storableValue(recordedFailure(error)) as RecordedFailure,
  cause: called && causeOf(called),
})

const causeOf = ({ tool_id }: Dispatch) => ({ column: 'tool_id' as const, id: tool_id as string })

/**
 * Returns the dispatch of a task's state, with the authority of the task narrowed to the workflow author's permissions.
 */
async function requireDispatch(services: Services, db: Queryable, task: TaskRow): Promise<StateDispatch> {
  const machine = await pinnedMachine(services, db, task)
  const dispatch = machine?.state(task.state)?.on_enter?.dispatch
  if (!machine || !dispatch) return raise('WORKFLOW_NOT_FOUND', { meta: { id: task.workflow_id } })
  const authority = narrowAuthority(task.authority, { id: task.workflow_id, author: machine.author })
  return { machine, dispatch, authority }
}

/** Equal to the limit of node inputs in runs. */
const MAX_INPUT_BYTES = 4 * 1024 * 1024

const inputTooBig = (): AppError =>
  new AppError('VALIDATION_FAILED', { message: 'input: must be at most 4 MiB of JSON', meta: { path: 'input' } })

/** Evaluates the input of a dispatch. @throws INTERNAL_ERROR if an expression fails, VALIDATION_FAILED over 4 MiB */
async function dispatchInput(
  services: Services,
  { input_mapping }: Dispatch,
  task: TaskRow,
): Promise<Record<string, unknown>> {
  try {
    const root = { task: taskRoot(task) }
    return storableValue(
      await evaluateMapping(services, task.project_id, input_mapping, root, {
        bytes: MAX_INPUT_BYTES,
        tooLarge: inputTooBig,
      }),
    ) as never
  } catch (error) {
    throw hideExpressionError(error)
  }
}

/** Defers a dispatch until the end of the pause, or requeues it if the pause has ended. Returns its assignments. */
async function deferDispatch(tx: Tx, services: Services, task: TaskRow, id: string): Promise<Fragment> {
  const project = await lockPauseState(tx, task.project_id)
  if (task.pause_requested_at === null && !project?.paused_at) {
    wakeDispatch(tx, { entity: task.id, id, project_id: task.project_id })
    return sql.fragment`state = 'queued', due_at = now()`
  }
  const after = withUpdatedAt(task, services.clock.now().toISOString(), {
    automation_status: 'paused',
    active_dispatch: null,
  })
  tx.alongside(guard => taskUpdate(task, after, guard))
  return sql.fragment`state = 'held', due_at = null`
}

/** Returns the assignments of a dispatch that waits for its work. */
const awaitResult = ({ config }: Services, resultId: string): Fragment => sql.fragment`
  state = 'started', result_id = ${resultId},
  due_at = now() + ${config.TASKS_DISPATCH_RECONCILE_GRACE_MS} * interval '1 ms'`

/** Starts the work of a dispatch and stores its id, in one transaction. */
async function startTarget(
  { services, entity, claim, suspend }: DispatchAttempt,
  { dispatch, authority }: StateDispatch,
  kind: keyof typeof startedTargets,
): Promise<AttemptFields> {
  const target = startedTargets[kind]
  const input = await dispatchInput(services, dispatch, entity)
  const starting = { task: { ...entity, authority }, dispatch, dispatch_id: claim.id, input }
  const prepared = await target.prepare(services, starting)
  await injectFault(services, 'task_starting')
  let result_id: string | null = null
  await suspend(async (tx, task) => {
    if (task.pause_requested_at !== null) return deferDispatch(tx, services, task, claim.id)
    const id = await target.start(tx, services, { ...starting, task: { ...task, authority }, prepared })
    const after = withUpdatedAt(task, services.clock.now().toISOString(), {
      active_dispatch: task.active_dispatch && { ...task.active_dispatch, id },
    })
    tx.alongside(guard => taskUpdate(task, after, guard))
    result_id = id
    return awaitResult(services, id)
  })
  return result_id === null ? { outcome: 'deferred' } : { outcome: 'started', result_id }
}

/** Settles a dispatch with the outcome of its work. */
async function settleResult(
  attempt: DispatchAttempt,
  { machine }: StateDispatch,
  kind: keyof typeof startedTargets,
  result_id: string,
): Promise<AttemptFields> {
  const { services, entity } = attempt
  await injectFault(services, 'task_settling')
  // The pending transition settles first: it may leave the state.
  if (entity.pending_approval_id !== null) await settlePendingTransition(services, { task_id: entity.id })
  const read = (db: Queryable) => startedTargets[kind].outcome(db, result_id)
  const outcome = await read(services.pool)
  if (!outcome) {
    await attempt.suspend(async () => awaitResult(services, result_id))
    return { outcome: 'waiting', result_id }
  }
  await settleDispatch(attempt, machine, outcome, { read })
  return { ...outcomeFields(outcome), result_id }
}

const outcomeFields = (outcome: AutomationOutcome): AttemptFields =>
  outcome.ok ? { outcome: 'succeeded' } : { outcome: 'failed', code: outcome.error.code }

/** Calls the tool of a dispatch and settles the dispatch. */
async function callDispatchTool(attempt: DispatchAttempt, state: StateDispatch): Promise<AttemptFields> {
  const { services, entity: task } = attempt
  const { machine, dispatch } = state
  const tool = await resolveSharedTool(services.pool, task.project_id, dispatch.tool_id as string)
  if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: dispatch.tool_id } })
  const usage: UsageDraft[] = []
  let isSettled = false
  try {
    const outcome = await callOutcome(attempt, state, tool, usage)
    const priced = await priceUsage(services, usage)
    const record = (outbox: Outbox): void => {
      recordUsageInTx(services, outbox, priced)
      if (!outcome.ok) return
      recordActivityInTx(outbox, {
        project_id: task.project_id,
        kind: 'action_executed',
        summary: `${tool.name} was called`,
        detail: {
          tool_id: tool.id,
          tool_name: tool.name,
          action: dispatch.operation_id ?? tool.name,
          task_id: task.id,
        },
        ref_id: tool.id,
      })
    }
    await settleDispatch(attempt, machine, outcome, { record })
    isSettled = true
    return outcomeFields(outcome)
  } finally {
    // The call was made even if the claim was lost. Usage records of a repeated call are deduplicated.
    if (!isSettled) recordUsageLater(services, usage)
  }
}

/** Calls a tool. @throws the error of an aborted attempt, and transient database errors */
async function callOutcome(
  { services, entity: task, claim, signal, set }: DispatchAttempt,
  { dispatch, authority }: StateDispatch,
  tool: ResolvedTool,
  usage: UsageDraft[],
): Promise<AutomationOutcome> {
  const isRepeated = isRepeatable(tool, dispatch.operation_id ?? undefined)
  const metering = { source: 'task' as const, record: claim.id }
  try {
    const input = await dispatchInput(services, dispatch, task)
    // A lost worker may or may not have made the call.
    if (claim.losses > 0 && (!isRepeated || claim.losses > MAX_LOSSES)) {
      usage.push(lostCall(tool, dispatch.operation_id ?? null, metering, input))
      throw new AppError('INTERNAL_ERROR')
    }
    const call = openCall(services, {
      action: dispatch.operation_id,
      input,
      caller: () =>
        callerForPrincipal(services, authority, task.project_id, {
          work_type: 'task',
          work_id: task.id,
          trigger_id: null,
          policy_id: null,
          chain: [],
        }),
      context: taskToolContext(services, task) ?? undefined,
      idempotencyKey: claim.id,
      metering: { ...metering, add: draft => void usage.push(draft) },
      signal,
    })
    const result = await callTool(services, tool, call)
    signal.throwIfAborted()
    await injectFault(services, 'task_called')
    return { ok: true, result, cause: causeOf(dispatch) }
  } catch (error) {
    if (signal.aborted || isTransient(error)) {
      // The call may have reached the tool: it counts as lost. HTTP tools query the database only before the call.
      if (!isRepeated && (signal.aborted || tool.type !== 'http'))
        await retryWhileUnavailable(() => set(services.pool, sql.fragment`losses = a.losses + 1`), { signal })
      throw error
    }
    if (!(error instanceof AppError)) services.log.error({ err: error, task_id: task.id }, 'task dispatch failed')
    return failureOf(error, dispatch)
  }
}
