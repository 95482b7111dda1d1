import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import type { ToolContext } from '#core/api/tool-context.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { isBackgroundWork, type PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { WorkflowState } from '../definition/definition.ts'
import { workflowKind } from '../definition/model.ts'
import { pinnedMachine } from '../definition/pinned-workflow.ts'
import { sealTaskContext } from './context.ts'
import { type TransitionActor, transitionRow } from './history.ts'
import { type TaskRow, taskKind } from './model.ts'
import { payloadInvalidError, payloadProblems } from './payload.ts'
import { historyInsert, readAutomationDepth, taskInsert } from './store.ts'
import { enterState, plainChange, type TaskChange } from './task-change.ts'
import { deferIfPaused, emitChange, writeDispatch } from './write.ts'

type PreparedTask = Pick<TaskRow, 'workflow_id' | 'workflow_version'> & { entry: WorkflowState }

type TaskStart = Pick<TaskRow, 'project_id' | 'title' | 'payload' | 'metadata' | 'assignee' | 'due_at'> &
  PreparedTask & {
    tool_context: ToolContext | null
    by: TransitionActor
    authority: PrincipalRecord
    /** Length of the chain of automated moves that leads to the task. */
    depth: number
  }

/**
 * Pins a new task to the current version of its workflow and checks its payload. The foreign key of the task protects the
 * workflow against deletion.
 * @throws WORKFLOW_NOT_FOUND, TASK_STATE_NOT_FOUND, TASK_PAYLOAD_INVALID
 */
export async function prepareTask(
  services: Services,
  db: Queryable,
  project_id: string,
  { workflow_id, state, payload = {} }: { workflow_id: string; state?: string; payload?: TaskRow['payload'] },
): Promise<PreparedTask> {
  const workflow = isIdOf(workflowKind, workflow_id) ? await workflowKind.find(db, workflow_id) : null
  const pinned = workflow?.project_id === project_id && { workflow_id, workflow_version: workflow.version }
  const machine = pinned && (await pinnedMachine(services, db, pinned))
  if (!pinned || !machine) return raise('WORKFLOW_NOT_FOUND', { meta: { id: workflow_id } })
  const entry = state === undefined ? machine.initial : machine.state(state)
  if (!entry) return raise('TASK_STATE_NOT_FOUND', { meta: { state } })
  const problems = await payloadProblems(services, project_id, machine, payload)
  if (problems.length > 0) throw payloadInvalidError(problems)
  return { ...pinned, entry }
}

/**
 * Returns the automation chain depth of a new task: one more than the task whose work creates it, which bounds tasks
 * that create each other.
 * @throws TASK_AUTOMATION_CHAIN_LIMIT
 */
export async function createdTaskDepth({
  tx,
  services,
  caller,
  origin,
}: Pick<Context, 'tx' | 'services' | 'caller' | 'origin'>): Promise<number> {
  if (!isBackgroundWork(caller)) return 0
  const { run } = caller
  const work =
    run?.work_type === 'task' || run?.work_type === 'orchestration_run'
      ? { type: run.work_type as 'task' | 'orchestration_run', id: run.work_id }
      : origin && { type: 'generation' as const, id: origin.generation_id }
  const creatorDepth = work ? await readAutomationDepth(tx, work) : null
  const limit = services.config.TASK_AUTOMATION_CHAIN_LIMIT
  const depth = creatorDepth === null ? 0 : creatorDepth + 1
  if (depth > limit) raise('TASK_AUTOMATION_CHAIN_LIMIT', { meta: { limit } })
  return depth
}

/** Inserts a prepared task and starts the work of its first state. */
export async function createTask(tx: Tx, services: Services, start: TaskStart): Promise<TaskRow> {
  const { project_id, entry, tool_context, by, depth, ...fields } = start
  const nowText = services.clock.now().toISOString()
  const id = newId(taskKind.prefix)
  const blank: TaskRow = {
    id,
    project_id,
    ...fields,
    state: entry.name,
    status: 'open',
    last_result: null,
    result_of: null,
    active_dispatch: null,
    automation_status: null,
    automation_error: null,
    automation_chain_depth: depth,
    pending_transition: null,
    pending_approval_id: null,
    pause_requested_at: null,
    pause_reason: null,
    entered_state_at: nowText,
    gate: null,
    gate_context: null,
    revision: 0,
    entry_seq: 0,
    stalls_at: null,
    context: sealTaskContext(services, { id, project_id }, tool_context),
    created_at: nowText,
    updated_at: nowText,
  }
  const { row, dispatch } = enterState(blank, entry, nowText)
  const events: TaskChange['events'] = [
    { verb: 'created' },
    ...(row.status === 'closed' ? [{ verb: 'closed' as const }] : []),
  ]
  const change = await deferIfPaused(tx, plainChange(blank, row, { dispatch, events }))
  const { after } = change
  const arrival = transitionRow(by, {
    task_id: id,
    from_state: null,
    to_state: after.state,
    transition: null,
    note: null,
    seq: after.revision,
    created_at: nowText,
  })
  // One statement: history and dispatch reference the task, and foreign keys are checked at the end of the statement.
  tx.alongside(guard => taskInsert(after, guard))
  tx.alongside(guard => historyInsert([arrival], guard))
  writeDispatch(tx, id, change.dispatch)
  emitChange(tx, change)
  return after
}
