import type { Context } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type Caller, isBackgroundWork, principalRecord } from '#core/iam/caller.ts'
import type { Machine } from '../definition/definition.ts'
import { pinnedMachine } from '../definition/pinned-workflow.ts'
import { sealTaskContext } from './context.ts'
import type { TransitionActor } from './history.ts'
import type { TaskRow } from './model.ts'
import { lockTask } from './store.ts'
import { decideMove, type Move, plainChange, requireTransition } from './task-change.ts'
import { withPendingTransition } from './transition-approval.ts'
import { writeChange } from './write.ts'

/** Returns the caller as the actor of a move. An API key is recorded as itself, not as its owner. */
export const transitionActor = ({ principal }: Caller): TransitionActor => ({
  kind: principal.type,
  id: principal.id,
  cause: null,
})

type TransitionRequest = {
  transition: string
  note?: string | null
  expected_state?: string | null
  tool_context?: Record<string, string> | null
}

/** Returns the workflow version that a task is pinned to. @throws TASK_NOT_FOUND if its workflow was deleted */
export const machineOf = async (services: Services, db: Queryable, task: TaskRow): Promise<Machine> =>
  (await pinnedMachine(services, db, task)) ?? raise('TASK_NOT_FOUND', { meta: { id: task.id } })

/** Applies a transition requested by a caller, or files the approval that it requires. */
export async function moveTask(
  { tx, services, caller, resource }: Context<unknown, unknown, TaskRow>,
  { transition, note, expected_state, tool_context }: TransitionRequest,
): Promise<TaskRow> {
  const { config, clock } = services
  const machine = await machineOf(services, tx, resource)
  requireTransition(machine, transition)
  const context = callerContext(tool_context, config.TOOL_CONTEXT_HEADER_PREFIX)
  const authority = principalRecord(caller)
  const move: Move = {
    transition,
    by: transitionActor(caller),
    authority,
    automated: isBackgroundWork(caller),
    note,
    expected_state,
    ...(context ? { context: sealTaskContext(services, resource, context) } : {}),
  }
  const task = await lockTask(tx, resource.id)
  const decided = await decideMove(
    services,
    machine,
    task,
    move,
    config.TASK_AUTOMATION_CHAIN_LIMIT,
    clock.now().toISOString(),
  )
  const gate = { authority, context: context !== null }
  const change =
    decided === 'gated'
      ? plainChange(task, await withPendingTransition(tx, services, task, transition, gate, move.context ?? null))
      : decided
  return writeChange(tx, services, change)
}
