import { redactFields } from '../../control/events/redact.ts'
import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { sessionKind } from './kind.ts'

const without = redactFields('error', 'required_action')

/** What events of sessions say of turns: why they failed, which calls their clients were asked for. */
export const sessionContent: TurnContentEraser = {
  async erase(_tx, turns) {
    const sessions = new Set(turns.flatMap(({ session_id }) => session_id ?? []))
    const ids = new Set(turns.map(({ id }) => id))
    return {
      counts: {},
      events: [
        {
          resource_type: sessionKind.name,
          ids: [...sessions],
          names: ['sessions.generation_failed', 'sessions.generation_requires_action'],
          without: data => (ids.has(data.generation_id as string) ? without(data) : data),
        },
      ],
    }
  },
}
