import { redactEvents } from '#control/events/redact.ts'
import { contentUnavailable, type EndUserContentEraser } from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { sessionKind } from './kind.ts'
import type { Attention } from './model.ts'
import { eraseStates } from './store.ts'
import { eraseAttention, listSessionsOfActor } from './takeover-store.ts'

const BATCH = 200

/**
 * Erases the states of an end user's sessions, and the reasons for which a person was requested, which may repeat its
 * words. The requests remain.
 */
export const sessionFieldContent: EndUserContentEraser = {
  async erase({ services, endUser, read, until, write }) {
    const without = (data: Record<string, unknown>) => {
      const attention = data.attention as Attention | null | undefined
      const isRequested = attention?.reason != null && attention.since <= until
      if (!isRequested && data.state == null) return data
      return { ...data, state: null, ...(isRequested && { attention: { ...attention, reason: null } }) }
    }
    for (let found: readonly string[] | null = null; !found || found.length === BATCH; ) {
      const ids: readonly string[] = await listSessionsOfActor(read, endUser.id, found?.at(-1) ?? '', BATCH)
      found = ids
      if (ids.length > 0)
        await write(async tx => {
          const erased = await eraseAttention(tx, ids, until)
          const states = await eraseStates(tx, ids)
          const events = await redactEvents(tx, [{ resource_type: sessionKind.name, ids, without }])
          const kept_answers = await eraseStoredResponses(
            tx,
            services,
            endUser.project_id,
            [...erased, ...states],
            contentUnavailable(),
          )
          return { session_attentions: erased.length, session_states: states.length, events, kept_answers }
        })
    }
    return 'erased'
  },
}
