import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const runErrors = {
  ORCHESTRATION_CYCLE_DETECTED: { status: 422, description: 'Graph has a cycle' },
  ORCHESTRATION_HUMAN_NODE_MISMATCH: {
    status: 400,
    description: 'Node is not the active human node',
    message: 'Node {node_id} is not awaiting input; nodes awaiting input: {node_ids}',
  },
  ORCHESTRATION_MAX_ITERATIONS_EXCEEDED: {
    status: 422,
    description: 'Run exceeded maximum iterations',
    message: 'Run reached its limit of {limit} node executions and polls',
  },
  ORCHESTRATION_NESTED_RUN_FAILED: {
    status: 422,
    description:
      'Loop or sub_orchestration child ended without success and without an error code (a child with a code fails the parent under that code)',
    message: 'Run {orchestration_run_id} started by node {node_id} ended as {status}',
  },
  ORCHESTRATION_NODE_FAILED: { status: 422, description: 'A node failed' },
  ORCHESTRATION_POLL_EXHAUSTED: {
    status: 422,
    description: 'Poll node hit attempt limit with fail_on_timeout set',
    message: 'Node {node_id} called its tool {attempts} times and exit_condition was never met',
  },
  ORCHESTRATION_RUN_DEPTH_LIMIT: {
    status: 409,
    description: 'Nested child run would exceed depth bound',
    message:
      'Run of orchestration {orchestration_id} would be nested {depth} levels deep; the {limit_source} limit is {limit}',
    hint: 'Reduce the nesting, or raise MAX_ORCHESTRATION_RUN_DEPTH of the deployment or max_run_depth of the project.',
  },
  ORCHESTRATION_RUN_NOT_AWAITING_INPUT: {
    status: 409,
    description: 'Run not awaiting input',
    message: 'Run is {status} and is not awaiting input',
    hint: 'Get the run with GET /orchestration-runs/{orchestration_run_id} and check its status and required_actions.',
  },
  ORCHESTRATION_RUN_NOT_CANCELLABLE: {
    status: 409,
    description: 'Run already terminal',
    message: 'Run is {status} and cannot be cancelled',
    hint: 'No action is needed: the run has ended.',
  },
  ORCHESTRATION_RUN_NOT_FOUND: {
    status: 404,
    description: 'Run missing',
    message: 'Run {id} not found',
  },
  ORCHESTRATION_RUN_NOT_PAUSABLE: {
    status: 409,
    description: 'Pause of a terminal run',
    message: 'Run is {status} and cannot be paused',
    hint: 'Start another run with POST /orchestration-runs.',
  },
  ORCHESTRATION_RUN_NOT_RETRYABLE: {
    status: 409,
    description: 'Retry of a run that is live or succeeded',
    message: 'Run is {status} and cannot be retried',
    hint: 'Retry only a failed, cancelled or expired run; start another run with POST /orchestration-runs.',
  },
  ORCHESTRATION_RUN_PAUSED: {
    status: 409,
    description: 'Human input while a pause is in force',
    message: 'Run is paused',
    hint: 'Resume the run with POST /orchestration-runs/{orchestration_run_id}/resume, then submit the input again.',
  },
  QUEUE_DRIVER_MISCONFIGURED: {
    status: 500,
    description: 'Orchestration queue driver misconfigured',
    message: 'Queue driver {driver} is not supported',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof runErrors> {}
}
