import { isDeepStrictEqual } from 'node:util'
import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { Services } from '#core/base/services.ts'
import { currentSpan } from '#core/base/telemetry.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { Machine } from '../definition/definition.ts'
import { type AutomationOutcome, type DispatchRoute, decideOutcome } from './automation.ts'
import type { TaskRow } from './model.ts'
import { payloadProblems } from './payload.ts'
import type { DispatchColumns, DispatchedTask } from './store.ts'
import { withPendingTransition } from './transition-approval.ts'
import { writeChange } from './write.ts'

export type DispatchAttempt = WorkAttempt<DispatchedTask, DispatchColumns>

/** Returns the change of a task that follows from the outcome of its dispatch. */
export const routeOutcome = (
  services: Services,
  machine: Machine,
  task: TaskRow,
  attempt: number,
  outcome: AutomationOutcome,
): Promise<DispatchRoute> =>
  decideOutcome(
    {
      services,
      machine,
      limit: services.config.TASK_AUTOMATION_CHAIN_LIMIT,
      nowText: services.clock.now().toISOString(),
      problems: payload => payloadProblems(services, task.project_id, machine, payload),
    },
    task,
    attempt,
    outcome,
  )

/**
 * Settles a claimed dispatch. The change is decided before the task is locked, and again under the lock if task or outcome
 * have changed since.
 * @param read reads the outcome of the dispatched work
 * @param record adds further writes to the outbox
 */
export async function settleDispatch(
  { services, entity, claim, settle }: DispatchAttempt,
  machine: Machine,
  outcome: AutomationOutcome,
  { read, record }: { read?: (db: Queryable) => Promise<AutomationOutcome | null>; record?: (outbox: Outbox) => void },
): Promise<void> {
  const route = (task: TaskRow, of: AutomationOutcome) => routeOutcome(services, machine, task, claim.attempt, of)
  const prepared = await route(entity, outcome)
  if (!outcome.ok) currentSpan()?.fail(outcome.error.code)
  await settle(async (tx, task) => {
    const current = (await read?.(tx)) ?? outcome
    const isUnchanged = task.revision === entity.revision && isDeepStrictEqual(current, outcome)
    record?.(tx)
    await writeRoute(tx, services, isUnchanged ? prepared : await route(task, current))
  })
}

/** Writes the change of a settled dispatch. Files an exception for a failed task that no transition handles. */
export async function writeRoute(
  tx: Tx,
  services: Services,
  { change, gate, unattended }: DispatchRoute,
): Promise<void> {
  const { id, state, project_id, title, automation_error, workflow_id, authority } = change.after
  if (unattended)
    fileExceptionInTx(tx, {
      project_id,
      kind: 'run_failed',
      title: `Dispatch of task ${title} failed in state ${state}`,
      detail: { task_id: id, workflow_id, state, code: automation_error?.code },
      dedup_key: `task:${id}:${state}`,
    })
  if (gate === null) return void (await writeChange(tx, services, change))
  const settled = { ...change.after, revision: change.before.revision }
  const after = await withPendingTransition(tx, services, settled, gate, { authority, context: false }, null)
  await writeChange(tx, services, { ...change, after })
}
