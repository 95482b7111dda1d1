import { eventMessage, eventStream } from '#core/api/event-stream.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { subscribeFormations } from '../records/notifications.ts'
import { findOperation, listEventsAfter, presentOperation } from '../records/store.ts'

/** Fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Streams the events of an operation, in order and in any web process; the last event is the operation itself.
 * @param seen number of the last event that the client has received
 */
export function streamOperation(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  { formation_id, id }: { formation_id: string; id: string },
  seen: number,
): OperationResult {
  const { services } = context
  let position = seen
  return eventStream(context, {
    watch: notify => subscribeFormations(services, changed => changed === formation_id && notify(), notify),
    position: () => position,
    async *look() {
      // Read before the events, so that the events of an ended operation are complete.
      const operation = await findOperation(services.pool, id)
      if (!operation) return 'ended'
      const events = await listEventsAfter(services.pool, id, position)
      for (const { seq, ...event } of events) {
        position = seq
        yield eventMessage(seq, 'resource', JSON.stringify(event))
      }
      if (operation.status === 'pending' || operation.status === 'running') return POLL_MS
      yield eventMessage(
        position,
        'operation',
        JSON.stringify(presentOperation(operation, await listEventsAfter(services.pool, id, 0))),
      )
      return 'ended'
    },
  })
}
