import { redactFields } from '#control/events/redact.ts'
import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { raise } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ActorRow } from '../actors/model.ts'
import { sessionKind } from './kind.ts'
import { findPairConflict, moveSessions } from './store.ts'

/** Reassigns the sessions of an actor. @throws SINGLE_SESSION_CONFLICT */
export async function moveActorSessions(tx: Tx, from: ActorRow, to: ActorRow): Promise<void> {
  const conflict = await findPairConflict(tx, from.id, to.id)
  if (conflict) raise('SINGLE_SESSION_CONFLICT', { meta: { session_id: conflict } })
  await moveSessions(tx, from.id, to.id)
}

const without = redactFields('error', 'required_action')

/** Erases errors and pending tool calls of turns in events of sessions. */
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
