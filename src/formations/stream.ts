import { eventMessage, eventStream } from '../core/api/event-stream.ts'
import type { Context, OperationResult } from '../core/api/operation.ts'
import { hearOfFormations } from './news.ts'
import { findOperation, formationEventsAfter, presentOperation } from './store.ts'

/** Fallback for lost notifications. */
const POLL_MS = 2000

/**
 * What an operation does, as server-sent events in their order, from any web process; the operation itself is the last.
 * @param seen number of the last event that the client has
 */
export function streamOperation(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  { formation_id, id }: { formation_id: string; id: string },
  seen: number,
): OperationResult {
  const { services } = context
  let position = seen
  return eventStream(context, {
    watch: news => hearOfFormations(services, named => named === formation_id && news(), news),
    position: () => position,
    async *look() {
      // Read before the events: those of an operation that has ended are then complete.
      const operation = await findOperation(services.pool, id)
      if (!operation) return 'ended'
      const events = await formationEventsAfter(services.pool, id, position)
      for (const { seq, ...event } of events) {
        position = seq
        yield eventMessage(seq, 'resource', JSON.stringify(event))
      }
      if (operation.status === 'pending' || operation.status === 'running') return POLL_MS
      yield eventMessage(
        position,
        'operation',
        JSON.stringify(presentOperation(operation, await formationEventsAfter(services.pool, id, 0))),
      )
      return 'ended'
    },
  })
}
