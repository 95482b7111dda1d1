import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { taskKind } from './model.ts'
import { eraseTaskTurns } from './store.ts'

type Data = Record<string, unknown>

const withoutResult = (data: Data): Data => ({
  ...data,
  last_result: null,
  ...('result' in data ? { result: null } : {}),
})

/** What a turn said to the task that it was made for goes with the turn. What a workflow wrote to the payload stays. */
export const taskContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = await eraseTaskTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { tasks: ids.length }, events: [{ resource_type: taskKind.name, ids, without: withoutResult }] }
  },
}
