import type { TurnContent } from '../../control/retention/content.ts'
import { taskKind } from './model.ts'
import { eraseOfTurns } from './store.ts'

type Data = Record<string, unknown>

const withoutResult = (data: Data): Data => ({
  ...data,
  last_result: null,
  ...('result' in data ? { result: null } : {}),
})

/** What a turn said to the task that it was made for goes with the turn. What a workflow wrote to the payload stays. */
export const taskContent: TurnContent = {
  async erase(tx, turns) {
    const ids = await eraseOfTurns(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { tasks: ids.length }, events: [{ resource_type: taskKind.name, ids, without: withoutResult }] }
  },
}
