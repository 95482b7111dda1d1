import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { taskKind } from './model.ts'
import { eraseTaskTurns } from './store.ts'

type EventData = Record<string, unknown>

const withoutResult = (data: EventData): EventData => ({
  ...data,
  last_result: null,
  ...('result' in data ? { result: null } : {}),
})

/** Erases a turn's output from the task that started it. Payload values that the workflow derived from it remain. */
export const taskContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseTaskTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { tasks: ids.length }, events: [{ resource_type: taskKind.name, ids, without: withoutResult }] }
  },
}
