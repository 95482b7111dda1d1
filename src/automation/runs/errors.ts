import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const runErrors = {
  ORCHESTRATION_CYCLE_DETECTED: { status: 422, description: 'Graph has a cycle' },
  ORCHESTRATION_HUMAN_NODE_MISMATCH: {
    status: 400,
    description: 'Node is not the active human node',
    message: 'The node {node_id} does not wait for input; those that wait are {node_ids}',
  },
  ORCHESTRATION_MAX_ITERATIONS_EXCEEDED: {
    status: 422,
    description: 'Run exceeded maximum iterations',
    message: 'The run has begun {limit} attempts of nodes, the most that one run may',
  },
  ORCHESTRATION_NESTED_RUN_FAILED: {
    status: 422,
    description:
      'Loop or sub_orchestration child ended non-success with no code of its own (a child with a code fails the parent under that code)',
    message: 'The run {orchestration_run_id} that the node {node_id} started ended {status}',
  },
  ORCHESTRATION_NODE_FAILED: { status: 422, description: 'A node failed' },
  ORCHESTRATION_POLL_EXHAUSTED: {
    status: 422,
    description: 'Poll node hit attempt limit with fail_on_timeout set',
    message: 'The node {node_id} has called its tool {attempts} times and its exit_condition did not hold',
  },
  ORCHESTRATION_RUN_DEPTH_LIMIT: {
    status: 409,
    description: 'Nested child run would exceed depth bound',
    message:
      'A run of the orchestration {orchestration_id} would be nested {depth} levels deep; the limit of the {limit_source} is {limit}',
    hint: 'Nest runs less deeply, or have the limit raised: MAX_ORCHESTRATION_RUN_DEPTH of the deployment, max_run_depth of the project.',
  },
  ORCHESTRATION_RUN_NOT_AWAITING_INPUT: {
    status: 409,
    description: 'Run not awaiting input',
    message: 'The run is {status} and does not wait for this',
    hint: 'Read the run: its status and its nodes say what it waits for.',
  },
  ORCHESTRATION_RUN_NOT_CANCELLABLE: {
    status: 409,
    description: 'Run already terminal',
    message: 'The run has ended: it is {status}',
    hint: 'Nothing is left to cancel.',
  },
  ORCHESTRATION_RUN_NOT_FOUND: {
    status: 404,
    description: 'Run missing',
    message: 'There is no run {id}',
  },
  ORCHESTRATION_RUN_NOT_PAUSABLE: {
    status: 409,
    description: 'Pause of a terminal run',
    message: 'The run has ended: it is {status}',
    hint: 'Only a run that has not ended can be paused; POST /orchestration-runs starts another one.',
  },
  ORCHESTRATION_RUN_NOT_RETRYABLE: {
    status: 409,
    description: 'Retry of a run that is live or succeeded',
    message: 'The run is {status}; only one that failed, was cancelled or expired can be retried',
    hint: 'Wait until the run has ended; in place of one that succeeded POST /orchestration-runs starts another one.',
  },
  ORCHESTRATION_RUN_PAUSED: {
    status: 409,
    description: 'Human input while a pause is in force',
    message: 'The run is paused',
    hint: 'Resume the run, then answer.',
  },
  QUEUE_DRIVER_MISCONFIGURED: {
    status: 500,
    description: 'Orchestration queue driver misconfigured',
    message: 'The queue driver {driver} is none that runs can be started with',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof runErrors> {}
}
