import { z } from 'zod'
import { orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { inputProblems, requireSize, startRun } from '#automation/orchestrations/runs/commands/start-run.ts'
import { isRunTerminal, longWorkState, type RunRow, runKind } from '#automation/orchestrations/runs/model.ts'
import { listTurns } from '#automation/orchestrations/runs/nodes/agent.ts'
import { refuseRecursion } from '#automation/triggers/configure.ts'
import { acceptFiring } from '#automation/triggers/fire-manually.ts'
import { type FiringRow, firingKind, isFiringTerminal, triggerKind } from '#automation/triggers/model.ts'
import { checkFiring } from '#automation/triggers/targets.ts'
import { permissionCheckFor, requirePermitted } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import { parse } from '#core/api/validate.ts'
import { AppError, type RecordedFailure, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Waiter } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { TurnOwner } from '#execution/generations/loop/turn-owner.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '#execution/generations/request/generate-request.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import type { Dispatch, DispatchKind } from '../definition/definition.ts'
import type { AutomationOutcome } from './automation.ts'
import { taskToolContext } from './context.ts'
import type { Cause } from './history.ts'
import { type ActiveDispatch, type TaskRow, taskKind } from './model.ts'
import { wakeDispatch } from './queue.ts'
import { requeueStarted } from './store.ts'

export type DispatchStart = { task: TaskRow; dispatch: Dispatch; dispatch_id: string; input: Record<string, unknown> }

/** Kind of work that a dispatch starts and that settles by itself. */
type DispatchTarget = {
  /** Validates the dispatch outside the transaction, before anything is written. */
  prepare(services: Services, starting: DispatchStart): Promise<unknown>
  /** Starts the work and returns its id, which the same transaction stores. */
  start(tx: Tx, services: Services, starting: DispatchStart & { prepared: unknown }): Promise<string>
  /** Returns the outcome, or null while the work is active. */
  outcome(db: Queryable, id: string): Promise<AutomationOutcome | null>
}

/** Value of `source` for the turns of tasks. */
const SOURCE = 'task'

const Messages = z.array(TurnMessage).min(1).max(500)

/** Returns `input.messages`, else one user message with `input.prompt` or the input as JSON. */
function inputMessages(input: Record<string, unknown>): z.output<typeof Messages> {
  const { messages, prompt } = input
  if (!Array.isArray(messages)) {
    const content = typeof prompt === 'string' && prompt !== '' ? prompt : JSON.stringify(input)
    return parse(Messages, [{ role: 'user', content }], 'input')
  }
  if (messages.some(message => message?.role === 'system')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  return parse(Messages, messages, 'input.messages')
}

const deletedOutcome = (
  code: 'GENERATION_NOT_FOUND' | 'ORCHESTRATION_RUN_NOT_FOUND',
  cause: Cause,
): AutomationOutcome => ({
  ok: false,
  error: new AppError(code, {
    message: code === 'GENERATION_NOT_FOUND' ? `Generation ${cause.id} was deleted` : `Run ${cause.id} was deleted`,
  }).recorded(),
  cause,
})

const agentTarget: DispatchTarget = {
  async prepare(services, { task, input }) {
    const { authority, project_id } = task
    const messages = inputMessages(input)
    const caller = await callerForPrincipal(services, authority, project_id)
    return messagesOf({ services, allow: permissionCheckFor(caller), body: { messages } }, project_id)
  },
  async start(tx, services, { task, dispatch, prepared }) {
    const { project_id } = task
    const { id, version } = await admitTurn(tx, services, { project_id, agent_id: dispatch.agent_id as string })
    const { generation_id } = await createTurn(tx, services, {
      project_id,
      agent_id: id,
      agent_version: version,
      messages: prepared as ModelMessage[],
      tool_context: taskToolContext(services, task),
      source: SOURCE,
      authority: task.authority,
      streamed: false,
      shape: 'agent',
    })
    return generation_id
  },
  async outcome(db, id) {
    const cause: Cause = { column: 'generation_id', id }
    const [turn] = await listTurns(db, [id])
    if (!turn) return deletedOutcome('GENERATION_NOT_FOUND', cause)
    if (turn.status === 'failed')
      return { ok: false, error: turn.error ?? new AppError('INTERNAL_ERROR').recorded(), cause }
    if (turn.status !== 'completed') return null
    const { content, object = null } = turn.output ?? {}
    const result = turn.output && { content, ...(object === null ? {} : { object }) }
    return { ok: true, result, cause }
  },
}

const orchestrationTarget: DispatchTarget = {
  async prepare(services, { task, dispatch, input }) {
    const row = await requireOrchestration(services.pool, dispatch, task)
    requireSize(input)
    const problems = await inputProblems(services, row, input)
    if (problems.length > 0) raiseInvalid(problems)
    return row.version
  },
  async start(tx, services, { task, dispatch, input, prepared }) {
    const { id } = await requireOrchestration(tx, dispatch, task)
    const row = await orchestrationKind.reference(tx, id, task.project_id)
    if (!row) return raise('ORCHESTRATION_NOT_FOUND', { meta: { id } })
    const run = await startRun(tx, services, {
      orchestration: row,
      // The input was checked with this version.
      version: prepared as number,
      input,
      tool_context: taskToolContext(services, task),
      authority: task.authority,
      task_id: task.id,
    })
    return run.id
  },
  async outcome(db, id) {
    const cause: Cause = { column: 'orchestration_run_id', id }
    const run = await runKind.find(db, id)
    if (!run) return deletedOutcome('ORCHESTRATION_RUN_NOT_FOUND', cause)
    if (!isRunTerminal(run)) return null
    if (run.status === 'succeeded') return { ok: true, result: longWorkState(run), cause }
    const error = new AppError('ORCHESTRATION_DISPATCH_FAILED', {
      message: `The run ended ${run.status}`,
      meta: { orchestration_run_id: id, run_status: run.status, cause: run.error },
    })
    return { ok: false, error: error.recorded(), cause, filed: run.status === 'failed' }
  },
}

async function requireOrchestration(db: Queryable, { orchestration_id: id = '' }: Dispatch, { project_id }: TaskRow) {
  const row = isIdOf(orchestrationKind, id) ? await orchestrationKind.find(db, id) : null
  return row?.project_id === project_id ? row : raise('ORCHESTRATION_NOT_FOUND', { meta: { id } })
}

const triggerTarget: DispatchTarget = {
  async prepare(services, { task, dispatch, input }) {
    const { trigger_id: id = '' } = dispatch
    const { authority, project_id } = task
    if (authority.via?.type === 'trigger')
      raise('TRIGGER_RECURSION_FORBIDDEN', { meta: { trigger_id: authority.via.id } })
    const row = isIdOf(triggerKind, id) ? await triggerKind.find(services.pool, id) : null
    if (row?.project_id !== project_id) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    const caller = await callerForPrincipal(services, authority, project_id)
    requirePermitted(caller, 'triggers:FireTrigger', { kind: triggerKind, row })
    refuseRecursion(caller)
    if (!row.active) raise('TRIGGER_NOT_ACTIVE', { meta: { trigger_id: id } })
    const firing = await acceptFiring(services, row, newId(firingKind.prefix), input)
    await checkFiring(services, row, { input: firing.input, causation_chain: [], asked_by: authority })
    return firing
  },
  async start(tx, _services, { task, dispatch_id, prepared }) {
    await lockUnpaused(tx, task.project_id)
    const firing = prepared as Awaited<ReturnType<typeof acceptFiring>>
    await firing.write(tx, task.authority, dispatch_id)
    return firing.id
  },
  async outcome(db, id) {
    const cause: Cause = { column: 'trigger_firing_id', id }
    const firing = await firingKind.find(db, id)
    if (!firing)
      return {
        ok: false,
        error: new AppError('RESOURCE_NOT_FOUND', { message: `Firing ${id} was deleted` }).recorded(),
        cause,
      }
    if (!isFiringTerminal(firing)) return null
    return firing.error
      ? { ok: false, error: firing.error as RecordedFailure, cause }
      : { ok: true, result: firing.result, cause }
  },
}

export const startedTargets: Record<Exclude<DispatchKind, 'tool'>, DispatchTarget> = {
  agent: agentTarget,
  orchestration: orchestrationTarget,
  trigger: triggerTarget,
}

const CONTENT_TABLES: Partial<Record<ActiveDispatch['kind'], string>> = {
  generation: 'generations',
  trigger_firing: 'trigger_firings',
}

/**
 * Locks the turn or firing of a task before the task, as an erasure of its content does, which then waits and erases the
 * result in the task too.
 */
export async function lockResult(tx: Tx, { active_dispatch }: TaskRow): Promise<void> {
  const table = active_dispatch && CONTENT_TABLES[active_dispatch.kind]
  if (!table || active_dispatch.id === null) return
  await tx.query(voidStatement`select from ${sql.identifier([table])} where id = ${active_dispatch.id} for share`)
}

async function wakeTask(tx: Tx, resultId: string): Promise<void> {
  const dispatch = await requeueStarted(tx, resultId)
  if (dispatch) wakeDispatch(tx, dispatch)
}

/** Wakes the task of a turn that has settled. */
export const taskTurns: TurnOwner = { source: SOURCE, settled: (tx, { id }) => wakeTask(tx, id) }

/** Wakes the task of a root run that has settled. */
export const taskRuns: Waiter<RunRow> = {
  mayWait: ({ task_id, parent_id }) => task_id !== null && parent_id === null,
  async settled(tx, run) {
    if (isRunTerminal(run)) await wakeTask(tx, run.id)
  },
}

/** Wakes the task of a firing that has settled. Its idempotency key is the dispatch id. */
export const taskFirings: Waiter<FiringRow> = {
  mayWait: ({ idempotency_key }) => isIdOf(taskKind, idempotency_key?.split(':')[0] ?? ''),
  settled: (tx, { id }) => wakeTask(tx, id),
}
