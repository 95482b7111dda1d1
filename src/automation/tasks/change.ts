import { isDeepStrictEqual } from 'node:util'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { type TaskRow, taskKind } from './model.ts'
import { payloadInvalid, payloadProblems } from './payload.ts'
import { plainChange, withUpdatedAt } from './task-change.ts'
import { machineOf } from './transition.ts'
import { writeChange } from './write.ts'

/**
 * Changes fields of a task under its row's lock, so that of patches that come at once all take effect. What changes nothing
 * is no event.
 * @throws TASK_NOT_FOUND, TASK_PAYLOAD_INVALID, RunFirst
 */
export async function changeTask(
  tx: Tx,
  services: Services,
  id: string,
  body: Partial<Pick<TaskRow, 'title' | 'assignee' | 'due_at' | 'payload'>>,
): Promise<TaskRow> {
  const task = await taskKind.lock(tx, id)
  const given = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined))
  const next: TaskRow = { ...task, ...given, payload: { ...task.payload, ...body.payload } }
  const changed = Object.keys(given).filter(
    name => !isDeepStrictEqual(task[name as keyof TaskRow], next[name as keyof TaskRow]),
  )
  if (changed.length === 0) return task
  if (changed.includes('payload')) {
    const machine = await machineOf(services, tx, task)
    const problems = await payloadProblems(services, task.project_id, machine, next.payload, true)
    if (problems.length > 0) throw payloadInvalid(problems)
  }
  const after = withUpdatedAt(next, services.clock.now().toISOString(), {})
  return writeChange(tx, services, plainChange(task, after, { events: [{ verb: 'updated', extra: { changed } }] }))
}
