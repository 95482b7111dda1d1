import { recordActivityInTx } from '../../control/activity/record.ts'
import { recordUsageInTx, recordUsageLater, type UsageDraft } from '../../control/usage/meter.ts'
import { priceUsage } from '../../control/usage/price-usage.ts'
import { AppError, type RecordedFailure, recordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import { evaluateMapping } from '../../core/expressions/mapping.ts'
import { narrowAuthority } from '../../core/iam/authority.ts'
import { type PrincipalRecord, triggerChainOf } from '../../core/iam/caller.ts'
import { ClaimLostError, type JobContext } from '../../core/jobs/handler.ts'
import { leaseTimings, processClaim, type AttemptOutcome as Reported } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { isRepeatable } from '../../execution/approvals/tool.ts'
import { callTool, openCall } from '../../execution/tools/call.ts'
import { lostCall } from '../../execution/tools/metering.ts'
import { type ResolvedTool, resolveSharedTool } from '../../execution/tools/resolve.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { Dispatch } from '../workflows/definition.ts'
import { pinnedMachine } from '../workflows/pinned-workflow.ts'
import { type AutomationOutcome, hideExpressionError } from './automation.ts'
import { taskToolContext } from './context.ts'
import { type TaskRow, taskKind } from './model.ts'
import type { DispatchMessage } from './queue.ts'
import { settleCall, settleFailure } from './settle.ts'
import {
  claimCall,
  deferTaskDispatch,
  findDispatch,
  recordStarted,
  type TaskWithDispatch,
  taskDispatchWork,
  taskUpdate,
} from './store.ts'
import { startedTargets } from './targets.ts'
import { taskRoot, withUpdatedAt } from './task-change.ts'

/** Lost workers after which a tool call is abandoned. */
const MAX_LOSSES = 5

const failureOf = (error: unknown): RecordedFailure => storableValue(recordedFailure(error)) as RecordedFailure

/**
 * Returns the dispatch of a task's state, with the authority of the task narrowed to the workflow author's permissions.
 */
async function requireDispatch(
  services: Services,
  task: TaskRow,
): Promise<{ dispatch: Dispatch; authority: PrincipalRecord }> {
  const machine = await pinnedMachine(services, services.pool, task)
  const dispatch = machine?.state(task.state)?.on_enter?.dispatch
  if (!machine || !dispatch) throw new AppError('WORKFLOW_NOT_FOUND', { meta: { id: task.workflow_id } })
  return { dispatch, authority: narrowAuthority(task.authority, { id: task.workflow_id, author: machine.author }) }
}

/** Equal to the limit of node inputs in runs. */
const MAX_INPUT_BYTES = 4 * 1024 * 1024

const inputTooBig = (): AppError =>
  new AppError('VALIDATION_FAILED', { message: 'input: must be at most 4 MiB of JSON', meta: { path: 'input' } })

/** Evaluates the input of a dispatch. @throws INTERNAL_ERROR if an expression fails, VALIDATION_FAILED over 4 MiB */
function dispatchInput({ input_mapping }: Dispatch, task: TaskRow): Record<string, unknown> {
  try {
    const root = { task: taskRoot(task) }
    return storableValue(
      evaluateMapping(input_mapping, root, { bytes: MAX_INPUT_BYTES, tooLarge: inputTooBig }),
    ) as never
  } catch (error) {
    throw hideExpressionError(error)
  }
}

/** Executes the dispatch of a task, unless it was replaced, has already started or is claimed by another worker. */
export async function executeDispatch(message: DispatchMessage, context: JobContext): Promise<void> {
  const { services } = context
  const { task_id, dispatch_id } = message
  const leaseMs = services.config.TASKS_DISPATCH_LEASE_SECONDS * 1000
  const found = await findDispatch(services.pool, task_id, dispatch_id)
  if (!found || found.dispatch.dispatch_state === 'held' || found.dispatch.dispatch_state === 'started') return
  if (found.dispatch.kind !== 'tool') {
    await withTriggerChain(triggerChainOf(found.task.authority), () => startTarget(message, context, found))
    return
  }
  const claimed = await claimCall(services.pool, task_id, dispatch_id, leaseMs)
  if (claimed)
    await withTriggerChain(triggerChainOf(claimed.task.authority), () => executeCall(context, claimed, leaseMs))
  else await deferPausedDispatch(services, message)
}

/** Defers a queued dispatch if its task or project is paused. */
const deferPausedDispatch = (services: Services, { task_id, dispatch_id }: DispatchMessage): Promise<void> =>
  services.write(async tx => {
    const locked = await findDispatch(tx, task_id, dispatch_id, true)
    if (locked?.dispatch.dispatch_state === 'queued' && isPaused(locked)) await deferDispatch(tx, services, locked.task)
  })

const isPaused = ({ task, dispatch }: TaskWithDispatch): boolean =>
  task.pause_requested_at !== null || dispatch.project_paused

async function deferDispatch(tx: Tx, services: Services, task: TaskRow): Promise<void> {
  await deferTaskDispatch(tx, task.id)
  const after = withUpdatedAt(task, services.clock.now().toISOString(), {
    automation_status: 'paused',
    active_dispatch: null,
  })
  tx.alongside(guard => taskUpdate(task, after, guard))
}

/** Starts the work of a dispatch and stores its id, in one transaction. */
async function startTarget(
  message: DispatchMessage,
  { services, log }: JobContext,
  found: TaskWithDispatch,
): Promise<void> {
  const { task_id, dispatch_id } = message
  const kind = found.dispatch.kind as Exclude<Dispatch['kind'], 'tool'>
  const target = startedTargets[kind]
  const { TASKS_DISPATCH_RECONCILE_GRACE_MS: graceMs } = services.config
  try {
    if (isPaused(found)) return await deferPausedDispatch(services, message)
    const { dispatch, authority } = await requireDispatch(services, found.task)
    const input = dispatchInput(dispatch, found.task)
    const starting = { task: { ...found.task, authority }, dispatch, dispatch_id, input }
    const prepared = await target.prepare(services, starting)
    await injectFault(services, 'task_starting')
    const started = await services.write(async tx => {
      const locked = await findDispatch(tx, task_id, dispatch_id, true)
      if (locked?.dispatch.dispatch_state !== 'queued') return null
      if (isPaused(locked)) {
        await deferDispatch(tx, services, locked.task)
        return null
      }
      const id = await target.start(tx, services, { ...starting, task: { ...locked.task, authority }, prepared })
      await recordStarted(tx, task_id, id, graceMs)
      const { task } = locked
      const after = withUpdatedAt(task, services.clock.now().toISOString(), {
        active_dispatch: task.active_dispatch && { ...task.active_dispatch, id },
      })
      tx.alongside(guard => taskUpdate(task, after, guard))
      return id
    })
    await injectFault(services, 'task_started')
    if (started) log.info({ task_id, dispatch_id, result_id: started, outcome: 'started' }, 'task dispatch started')
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY' || isTransient(error)) throw error
    if (error.code === 'PROJECT_PAUSED') return await deferPausedDispatch(services, message)
    const failure = failureOf(error)
    await settleFailure(services, message, { ok: false, error: failure, cause: null })
    log.info(
      { task_id, dispatch_id, outcome: 'failed', code: failure.code, decision: 'settled' },
      'task dispatch failed',
    )
  }
}

/** Calls the tool of a claimed dispatch and settles the dispatch. */
async function executeCall(context: JobContext, claimed: TaskWithDispatch, leaseMs: number): Promise<void> {
  const { services, signal, stopping } = context
  const { task, dispatch } = claimed
  const claim = {
    entity: task.id,
    id: dispatch.dispatch_id,
    claims: dispatch.claims,
    failures: dispatch.failures,
    losses: dispatch.losses,
  }
  await injectFault(services, 'task_claimed')
  const usage: UsageDraft[] = []
  let settled = false
  let tool: ResolvedTool | null = null
  let defined: Dispatch | null = null
  const settle = async (outcome: AutomationOutcome): Promise<void> => {
    const priced = await priceUsage(services, usage)
    const record = (outbox: Outbox) => {
      recordUsageInTx(outbox, priced)
      if (!outcome.ok || !tool) return
      recordActivityInTx(outbox, {
        project_id: task.project_id,
        kind: 'action_executed',
        summary: `${tool.name} was called`,
        detail: {
          tool_id: tool.id,
          tool_name: tool.name,
          action: defined?.operation_id ?? tool.name,
          task_id: task.id,
        },
        ref_id: tool.id,
      })
    }
    const after = await retryWhileUnavailable(() => settleCall(services, claimed, outcome, record), { signal })
    if (!after) throw new ClaimLostError()
    settled = true
    await injectFault(services, 'task_settled')
  }
  const cause = () => (defined?.tool_id == null ? null : { column: 'tool_id' as const, id: defined.tool_id })
  const fail = async (error: RecordedFailure): Promise<Reported> => {
    await settle({ ok: false, error, cause: cause() })
    return { outcome: 'failed', code: error.code, decision: 'settled' }
  }
  await processClaim(context, {
    what: 'task dispatch',
    ids: { task_id: task.id, dispatch_id: dispatch.dispatch_id, project_id: task.project_id },
    attempts: taskDispatchWork,
    claim,
    lease: leaseTimings(leaseMs),
    lock: tx => taskKind.find(tx, task.id, true),
    async work(activeClaim) {
      const { dispatch: due, authority } = await requireDispatch(services, task)
      defined = due
      tool = await resolveSharedTool(services.pool, task.project_id, defined.tool_id as string)
      if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: defined.tool_id } })
      const repeatable = isRepeatable(tool, defined.operation_id ?? undefined)
      const input = dispatchInput(defined, task)
      const metering = { source: 'task' as const, record: dispatch.dispatch_id }
      // A lost worker may or may not have made the call.
      if (dispatch.losses > 0 && (!repeatable || dispatch.losses > MAX_LOSSES)) {
        usage.push(lostCall(tool, defined.operation_id ?? null, metering, input))
        return fail(new AppError('INTERNAL_ERROR').recorded())
      }
      const opened = openCall(services, {
        action: defined.operation_id,
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
        idempotencyKey: dispatch.dispatch_id,
        metering: { ...metering, add: draft => void usage.push(draft) },
        signal: activeClaim.signal,
      })
      let result: unknown
      try {
        result = await callTool(services, tool, opened)
        activeClaim.signal.throwIfAborted()
      } catch (error) {
        // A requeue would repeat a call that may have reached the tool. HTTP tools query the database before it only.
        const mayBeMade = (signal.aborted && stopping.aborted) || (isTransient(error) && tool.type !== 'http')
        if (mayBeMade && !repeatable) return fail(new AppError('INTERNAL_ERROR').recorded())
        throw error
      }
      await injectFault(services, 'task_called')
      await settle({ ok: true, result, cause: cause() })
      return { outcome: 'succeeded' }
    },
    async fail(error) {
      if (!(error instanceof AppError)) services.log.error({ err: error, task_id: task.id }, 'task dispatch failed')
      return fail(failureOf(error))
    },
  }).finally(() => {
    // The call was made even if the claim was lost. Usage records of a repeated call are deduplicated.
    if (!settled) recordUsageLater(services, usage)
  })
}
