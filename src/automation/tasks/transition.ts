import { raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { type Caller, isBackgroundWork, principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import type { Machine } from '../workflows/definition.ts'
import { pinnedMachine } from '../workflows/pinned-workflow.ts'
import { sealTaskContext } from './context.ts'
import type { TransitionActor } from './history.ts'
import { type TaskRow, taskKind } from './model.ts'
import { decideMove, type Move, plainChange, transitionOf } from './task-change.ts'
import { withPendingTransition } from './transition-approval.ts'
import { writeChange, writeChangeInOneStatement } from './write.ts'

/** A caller as who moves a task: a key as itself, not as its owner. */
export const transitionActor = ({ principal }: Caller): TransitionActor => ({
  kind: principal.type,
  id: principal.id,
  cause: null,
})

type Asked = {
  transition: string
  note?: string | null
  expected_state?: string | null
  tool_context?: Record<string, string> | null
}

/** The version that a task goes by. Raises TASK_NOT_FOUND when its workflow was deleted meanwhile. */
export const machineOf = async (services: Services, db: Queryable, task: TaskRow): Promise<Machine> =>
  (await pinnedMachine(services, db, task)) ?? raise('TASK_NOT_FOUND', { meta: { id: task.id } })

/**
 * Moves a task for a caller: in one statement where the task is as it was read, else in a transaction that holds its row,
 * as where people are asked first or a run is cancelled.
 */
export async function moveTask(
  { services, caller, resource, record }: Context<unknown, unknown, TaskRow>,
  { transition, note, expected_state, tool_context }: Asked,
): Promise<TaskRow> {
  const { id } = resource
  const { config } = services
  const machine = await machineOf(services, services.pool, resource)
  transitionOf(machine, transition)
  const bag = callerContext(tool_context, config.TOOL_CONTEXT_HEADER_PREFIX)
  const authority = principalRecord(caller)
  const move: Move = {
    transition,
    by: transitionActor(caller),
    authority,
    machine: isBackgroundWork(caller),
    note,
    expected_state,
    ...(bag ? { context: sealTaskContext(services, resource, bag) } : {}),
  }
  const decide = (task: TaskRow) =>
    decideMove(machine, task, move, config.TASK_AUTOMATION_CHAIN_LIMIT, services.clock.now().toISOString())
  const known = decide(resource)
  if (
    known !== 'gated' &&
    known.cancels === null &&
    (await writeChangeInOneStatement(services, known, outgoing =>
      record(outgoing, 200, { id, body: taskKind.present(known.after) }),
    ))
  )
    return known.after
  return services.write(async tx => {
    const task = await taskKind.lock(tx, id)
    const step = decide(task)
    const gate = { authority, context: bag !== null }
    const made =
      step === 'gated'
        ? plainChange(task, await withPendingTransition(tx, services, task, transition, gate, move.context ?? null))
        : step
    const after = await writeChange(tx, services, made)
    record(tx, 200, { id, body: taskKind.present(after) })
    return after
  })
}
