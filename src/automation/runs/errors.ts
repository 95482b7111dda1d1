import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const runErrors = {
  ORCHESTRATION_CYCLE_DETECTED: { status: 422, description: 'Graph has a cycle' },
  ORCHESTRATION_HUMAN_NODE_MISMATCH: {
    status: 400,
    description: 'Node is not the active human node',
    message: 'The node does not wait for input; meta.node_ids names those that do',
  },
  ORCHESTRATION_MAX_ITERATIONS_EXCEEDED: { status: 422, description: 'Run exceeded maximum iterations' },
  ORCHESTRATION_NESTED_RUN_FAILED: {
    status: 422,
    description:
      'Loop or sub_orchestration child ended non-success with no code of its own (a child with a code fails the parent under that code)',
  },
  ORCHESTRATION_NODE_FAILED: { status: 422, description: 'A node failed' },
  ORCHESTRATION_POLL_EXHAUSTED: { status: 422, description: 'Poll node hit attempt limit with fail_on_timeout set' },
  ORCHESTRATION_RUN_DEPTH_LIMIT: { status: 409, description: 'Nested child run would exceed depth bound' },
  ORCHESTRATION_RUN_NOT_AWAITING_INPUT: {
    status: 409,
    description: 'Run not awaiting input',
    message: 'The run does not wait for this; meta.status says how it stands',
  },
  ORCHESTRATION_RUN_NOT_CANCELLABLE: {
    status: 409,
    description: 'Run already terminal',
    message: 'The run has ended; meta.status says how',
  },
  ORCHESTRATION_RUN_NOT_FOUND: { status: 404, description: 'Run missing', message: 'There is no such run' },
  ORCHESTRATION_RUN_NOT_PAUSABLE: {
    status: 409,
    description: 'Pause of a terminal run',
    message: 'The run has ended; meta.status says how',
  },
  ORCHESTRATION_RUN_NOT_RETRYABLE: {
    status: 409,
    description: 'Retry of a run that is live or succeeded',
    message: 'Only a run that failed, was cancelled or expired can be retried',
  },
  ORCHESTRATION_RUN_PAUSED: {
    status: 409,
    description: 'Human input while a pause is in force',
    message: 'The run is paused',
    hint: 'Resume the run, then answer.',
  },
  QUEUE_DRIVER_MISCONFIGURED: { status: 500, description: 'Orchestration queue driver misconfigured' },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof runErrors> {}
}
