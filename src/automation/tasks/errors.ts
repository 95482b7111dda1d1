import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const taskErrors = {
  ORCHESTRATION_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter dispatch run ended failed, cancelled or expired',
  },
  TASK_AUTOMATION_CHAIN_LIMIT: {
    status: 409,
    description:
      'Too many machine-driven transitions back-to-back (default ceiling 50); a move by a person, a plain API key or an approval resolution resets the chain',
    message: 'Automation has moved the task {limit} times in a row; the next move is for a person',
    hint: 'Have a person or a plain API key move the task, and see whether states of the workflow start each other without end.',
  },
  TASK_AUTOMATION_PROVENANCE_MISSING: {
    status: 500,
    description:
      'Automation transition with no recorded cause (principal_id, generation_id, orchestration_run_id all null)',
    message: 'Nothing says what caused the move that automation makes',
  },
  TASK_GUARD_REJECTED: {
    status: 400,
    description: 'Transition guard false',
    message: 'The guard of the transition {transition} does not hold',
  },
  TASK_NOT_FOUND: {
    status: 404,
    description: 'Task missing',
    message: 'There is no task {id}',
  },
  TASK_PAYLOAD_INVALID: {
    status: 400,
    description: 'Payload violates the workflow payload_schema',
    hint: 'meta.problems names what is wrong with the payload; the version of the workflow that the task is pinned to has the schema.',
  },
  TASK_STATE_NOT_FOUND: {
    status: 400,
    description: 'Create state not declared by the workflow',
    message: 'The workflow has no state {state}',
  },
  TASK_TRANSITION_CONFLICT: {
    status: 409,
    description: 'Concurrent change invalidated the transition, or task closed',
    hint: 'Read the task again: its state, status and pending_transition say what can be done.',
  },
  TASK_TRANSITION_NOT_FOUND: {
    status: 400,
    description: 'Transition not in the workflow',
    message: 'The workflow has no transition {transition}',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof taskErrors> {}
}
