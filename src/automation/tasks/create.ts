import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/write.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { workflowKind } from '../workflows/model.ts'
import { pinnedMachine } from '../workflows/pinned.ts'
import { sealedContext } from './context.ts'
import { type Mover, transitionRow } from './history.ts'
import { type TaskRow, taskKind } from './model.ts'
import { arrived } from './move.ts'
import { payloadInvalid, payloadProblems } from './payload.ts'
import { historyInsert, taskInsert } from './store.ts'
import { asPaused, followStep, writeDispatch } from './write.ts'

/** What a task is created with. */
export type TaskStart = Pick<TaskRow, 'title' | 'payload' | 'metadata' | 'assignee' | 'due_at'> & {
  project_id: string
  workflow_id: string
  state?: string
  tool_context: ToolContext | null
  by: Mover
  authority: PrincipalRecord
}

/**
 * Adds a task in the current version of its workflow, whose row the transaction keeps: it arrives in its first state as in
 * any other.
 * @throws WORKFLOW_NOT_FOUND, TASK_STATE_NOT_FOUND, TASK_PAYLOAD_INVALID, RunFirst
 */
export async function createTask(tx: Tx, services: Services, start: TaskStart): Promise<TaskRow> {
  const { project_id, workflow_id, state, tool_context, by, authority, ...given } = start
  const workflow = await workflowKind.reference(tx, workflow_id, project_id)
  const pinned = workflow && { workflow_id, workflow_version: workflow.version }
  const machine = pinned && (await pinnedMachine(services, tx, pinned))
  if (!pinned || !machine) return raise('WORKFLOW_NOT_FOUND', { meta: { id: workflow_id } })
  const entry = state === undefined ? machine.initial : machine.state(state)
  if (!entry) return raise('TASK_STATE_NOT_FOUND', { meta: { state } })
  const problems = await payloadProblems(services, project_id, machine, given.payload, true)
  if (problems.length > 0) throw payloadInvalid(problems)
  const nowText = services.clock.now().toISOString()
  const id = newId(taskKind.prefix)
  const blank: TaskRow = {
    id,
    project_id,
    ...pinned,
    ...given,
    state: entry.name,
    status: 'open',
    last_result: null,
    result_of: null,
    active_dispatch: null,
    automation_status: null,
    automation_error: null,
    automation_chain_depth: 0,
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
    authority,
    context: sealedContext(services, { id, project_id }, tool_context),
    created_at: nowText,
    updated_at: nowText,
  }
  const { row, dispatch } = arrived(blank, entry, nowText)
  const step = await asPaused(tx, {
    before: blank,
    after: row,
    history: [],
    dispatch,
    events: [{ verb: 'created' }, ...(row.status === 'closed' ? [{ verb: 'closed' as const }] : [])],
    cancels: null,
  })
  const { after } = step
  const arrival = transitionRow(by, {
    task_id: id,
    from_state: null,
    to_state: after.state,
    transition: null,
    note: null,
    seq: after.revision,
    created_at: nowText,
  })
  // One statement: the others refer to the row, and foreign keys are checked at its end.
  tx.alongside(guard => taskInsert(after, guard))
  tx.alongside(guard => historyInsert([arrival], guard))
  writeDispatch(tx, id, step.dispatch)
  followStep(tx, step)
  return after
}
