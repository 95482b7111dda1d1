import { z } from 'zod'
import { AppError, type RecordedFailure, raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { parse } from '../../core/api/validate.ts'
import { type Queryable, voidStatement } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { allowedPatterns, requirePermitted } from '../../core/iam/access.ts'
import type { Services } from '../../core/process/services.ts'
import type { TurnOwner } from '../../execution/generations/loop/turn-owner.ts'
import { admitTurn } from '../../execution/generations/request/admission.ts'
import { createTurn } from '../../execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '../../execution/generations/request/generate-request.ts'
import type { ModelMessage } from '../../execution/providers/model-messages.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { orchestrationKind } from '../orchestrations/model.ts'
import { inputProblems, requireSize, startRun } from '../runs/commands/start.ts'
import type { RunWatcher } from '../runs/engine/run-watchers.ts'
import { longWorkState, isRunTerminal as runHasEnded, runKind } from '../runs/model.ts'
import { turnsOf } from '../runs/nodes/agent.ts'
import { refuseRecursion } from '../triggers/configure.ts'
import { acceptFiring } from '../triggers/fire-manually.ts'
import { type FiringRow, firingKind, isFiringTerminal, triggerKind } from '../triggers/model.ts'
import { checkFiring } from '../triggers/targets.ts'
import type { Dispatch, DispatchKind } from '../workflows/definition.ts'
import type { AutomationOutcome } from './automation.ts'
import { taskToolContext } from './context.ts'
import type { Cause } from './history.ts'
import type { TaskRow } from './model.ts'
import { settleQueue } from './queue.ts'
import { waitingFor } from './store.ts'

/** What dispatches start that ends by itself, and what became of it. */

export type DispatchStart = { task: TaskRow; dispatch: Dispatch; dispatch_id: string; input: Record<string, unknown> }

type Target = {
  /** Checks what can be checked before anything is written, outside of a transaction. */
  prepare(services: Services, starting: DispatchStart): Promise<unknown>
  /** Starts the work in the transaction that notes its id, which it returns. */
  start(tx: Tx, services: Services, starting: DispatchStart & { prepared: unknown }): Promise<string>
  /** What became of it, in the transaction that settles the task, before it takes that; null while it is under way. */
  outcome(db: Queryable, id: string): Promise<AutomationOutcome | null>
}

/** What `source` says of the turns of tasks. */
const SOURCE = 'task'

const Messages = z.array(TurnMessage).min(1).max(500)

/** What the agent of a state is asked. */
function messagesFrom(input: Record<string, unknown>): z.output<typeof Messages> {
  const { messages, prompt } = input
  if (!Array.isArray(messages)) {
    const content = typeof prompt === 'string' && prompt !== '' ? prompt : JSON.stringify(input)
    return parse(Messages, [{ role: 'user', content }], 'input')
  }
  if (messages.some(message => message?.role === 'system')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  return parse(Messages, messages, 'input.messages')
}

const gone = (code: 'GENERATION_NOT_FOUND' | 'ORCHESTRATION_RUN_NOT_FOUND', cause: Cause): AutomationOutcome => ({
  ok: false,
  error: new AppError(code, { message: 'What the task waited for was deleted' }).recorded(),
  cause,
})

const agent: Target = {
  async prepare(services, { task, input }) {
    const { authority, project_id } = task
    const messages = messagesFrom(input)
    const caller = await callerForPrincipal(services, authority, project_id)
    return messagesOf({ services, allow: allowedPatterns(caller), body: { messages } }, project_id)
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
    // A purge waits, and then finds what was kept of the turn; one that came before has left nothing to keep.
    await db.query(
      voidStatement`select from generations where id = ${id} and status in ('completed', 'failed') for share`,
    )
    const [turn] = await turnsOf(db, [id])
    if (!turn) return gone('GENERATION_NOT_FOUND', cause)
    if (turn.status === 'failed')
      return { ok: false, error: turn.error ?? new AppError('INTERNAL_ERROR').recorded(), cause }
    if (turn.status !== 'completed') return null
    const { content, object = null } = turn.output ?? {}
    const result = turn.output && { content, ...(object === null ? {} : { object }) }
    return { ok: true, result, cause }
  },
}

const orchestration: Target = {
  async prepare(services, { task, dispatch, input }) {
    const row = await orchestrationOf(services.pool, dispatch, task)
    requireSize(input)
    const problems = await inputProblems(services, row, input)
    if (problems.length > 0) raiseInvalid(problems)
    return row.version
  },
  async start(tx, services, { task, dispatch, input, prepared }) {
    const { id } = await orchestrationOf(tx, dispatch, task)
    const found = await orchestrationKind.reference(tx, id, task.project_id)
    if (!found) return raise('ORCHESTRATION_NOT_FOUND', { meta: { id } })
    const run = await startRun(tx, services, {
      orchestration: found,
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
    if (!run) return gone('ORCHESTRATION_RUN_NOT_FOUND', cause)
    if (!runHasEnded(run)) return null
    if (run.status === 'succeeded') return { ok: true, result: longWorkState(run), cause }
    const error = new AppError('ORCHESTRATION_DISPATCH_FAILED', {
      message: `The run ended ${run.status}`,
      meta: { orchestration_run_id: id, run_status: run.status, cause: run.error },
    })
    return { ok: false, error: error.recorded(), cause, filed: run.status === 'failed' }
  },
}

async function orchestrationOf(db: Queryable, { orchestration_id: id = '' }: Dispatch, { project_id }: TaskRow) {
  const row = isIdOf(orchestrationKind, id) ? await orchestrationKind.find(db, id) : null
  return row?.project_id === project_id ? row : raise('ORCHESTRATION_NOT_FOUND', { meta: { id } })
}

const trigger: Target = {
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
    const firing = acceptFiring(services, row, newId(firingKind.prefix), input)
    await checkFiring(services, row, { input: firing.input, causation_chain: [], asked_by: authority })
    return firing
  },
  async start(tx, _services, { task, dispatch_id, prepared }) {
    await lockUnpaused(tx, task.project_id)
    const firing = prepared as ReturnType<typeof acceptFiring>
    await firing.write(tx, task.authority, dispatch_id)
    return firing.id
  },
  async outcome(db, id) {
    const cause: Cause = { column: 'trigger_firing_id', id }
    // As that of a turn.
    await db.query(
      voidStatement`select from trigger_firings where id = ${id} and state in ('succeeded', 'failed') for share`,
    )
    const firing = await firingKind.find(db, id)
    if (!firing)
      return {
        ok: false,
        error: new AppError('RESOURCE_NOT_FOUND', { message: 'The firing was deleted' }).recorded(),
        cause,
      }
    if (!isFiringTerminal(firing)) return null
    return firing.error
      ? { ok: false, error: firing.error as RecordedFailure, cause }
      : { ok: true, result: firing.result, cause }
  },
}

export const startedTargets: Record<Exclude<DispatchKind, 'tool'>, Target> = { agent, orchestration, trigger }

async function wakeTask(tx: Tx, resultId: string): Promise<void> {
  const found = await waitingFor(tx, resultId)
  if (found) tx.send(settleQueue, found)
}

/** A turn tells the task that it was made for. */
export const taskTurns: TurnOwner = { source: SOURCE, settled: (tx, { id }) => wakeTask(tx, id) }

/** So does a run. */
export const taskRuns: RunWatcher = {
  watches: ({ task_id, parent_id }) => task_id !== null && parent_id === null,
  async changed(tx, run) {
    if (runHasEnded(run)) await wakeTask(tx, run.id)
  },
}

/** So does a firing: those that tasks make have the name of the dispatch as their key. */
export async function taskFirings(tx: Tx, { id, idempotency_key }: FiringRow): Promise<void> {
  if (idempotency_key?.startsWith('task_')) await wakeTask(tx, id)
}
