import type { WaitingGrant } from '#core/api/operation.ts'
import { type EventStream, FailedEvent, streamEvent } from '#core/api/streams.ts'
import { NodeExecution, OrchestrationRun } from '../model.ts'

/** Describes how a client polls a run until it ends. */
export const runWaiting = (byDefault: boolean): WaitingGrant => ({
  default: byDefault,
  running: ['queued', 'running', 'sleeping'],
  done: ['succeeded'],
  failed: ['failed', 'cancelled', 'expired'],
  paused: ['awaiting_input'],
  poll: 'getRun',
})

/** Events of a run stream; their IDs are revisions of the run. */
export const runEvents: EventStream = {
  name: 'RunEvent',
  events: [
    streamEvent(
      'RunUpdatedEvent',
      'run.updated',
      'State of the run',
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
      'Node execution without input and output',
      NodeExecution.omit({ input: true, output: true }),
    ),
    streamEvent('RunSettledEvent', 'run.settled', 'Run in its terminal state', OrchestrationRun),
    FailedEvent,
  ],
  last: ['run.settled', 'error'],
  resume: 'streamOrchestrationRun',
}
