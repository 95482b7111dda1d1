import type { WaitingGrant } from '../../../core/api/operation.ts'
import { type EventStream, FailedEvent, streamEvent } from '../../../core/api/streams.ts'
import { NodeExecution, OrchestrationRun } from '../model.ts'

/** How a run is waited for by reading it. */
export const runWaiting = (byDefault: boolean): WaitingGrant => ({
  default: byDefault,
  done: ['succeeded'],
  failed: ['failed', 'cancelled', 'expired'],
  paused: ['awaiting_input'],
  poll: 'getRun',
})

/** What the stream of a run says; ids are revisions of the run. */
export const runEvents: EventStream = {
  name: 'RunEvent',
  events: [
    streamEvent(
      'RunUpdatedEvent',
      'run.updated',
      'How the run stands',
      OrchestrationRun.pick({
        id: true,
        status: true,
        active_nodes: true,
        required_actions: true,
        updated_at: true,
      }),
    ),
    streamEvent(
      'RunNodeUpdatedEvent',
      'node.updated',
      'An attempt of a node, without its input and output',
      NodeExecution.omit({ input: true, output: true }),
    ),
    streamEvent('RunSettledEvent', 'run.settled', 'The run, which has ended', OrchestrationRun),
    FailedEvent,
  ],
  last: ['run.settled', 'error'],
  resume: 'streamOrchestrationRun',
}
