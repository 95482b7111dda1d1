import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const taskErrors = {
  ORCHESTRATION_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter dispatch run ended failed, cancelled or expired',
  },
  TASK_AUTOMATION_CHAIN_LIMIT: {
    status: 409,
    description:
      'Too many machine-driven transitions back-to-back (default ceiling 50); a move by a person, a plain API key or an approval resolution resets the chain',
    message: 'The chain of automated transitions has reached the limit of {limit}',
    hint: 'Move the task as a user or with a plain API key, and check the workflow for states that start each other in a loop.',
  },
  TASK_AUTOMATION_PROVENANCE_MISSING: {
    status: 500,
    description:
      'Automation transition with no recorded cause (principal_id, generation_id, orchestration_run_id all null)',
    message: 'The automated transition has no recorded cause',
  },
  TASK_GUARD_REJECTED: {
    status: 400,
    description: 'Transition guard false',
    message: 'The guard of transition {transition} evaluated to false',
  },
  TASK_NOT_FOUND: {
    status: 404,
    description: 'Task missing',
    message: 'Task {id} not found',
  },
  TASK_PAYLOAD_INVALID: {
    status: 400,
    description: 'Payload violates the workflow payload_schema',
    hint: 'Fix the fields in meta.problems. The schema is payload_schema of the workflow version that the task is pinned to.',
  },
  TASK_STATE_NOT_FOUND: {
    status: 400,
    description: 'Create state not declared by the workflow',
    message: 'The workflow has no state {state}',
  },
  TASK_TRANSITION_CONFLICT: {
    status: 409,
    description: 'Concurrent change invalidated the transition, or task closed',
    hint: 'Read the task with GET /tasks/{task_id} and check its state, status and pending_transition.',
  },
  TASK_TRANSITION_NOT_FOUND: {
    status: 400,
    description: 'Transition not in the workflow',
    message: 'The workflow has no transition {transition}',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof taskErrors> {}
}
