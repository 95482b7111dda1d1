import type { Codes, ErrorTable } from '../core/api/errors.ts'

export const plannedErrors = {
  EVAL_SCORING_FAILED: { status: 422, description: 'A scorer failed without a code of its own' },
  FORMATION_DELETE_FAILED: {
    status: 409,
    description: 'Some resources could not be deleted; stack left delete_failed',
  },
  FORMATION_HANDLER_FAILED: {
    status: 502,
    description: 'External handler for an operator-registered resource type failed',
  },
  FORMATION_INVALID_METADATA: {
    status: 400,
    description: 'Formation-level metadata contains a substitution expression',
  },
  FORMATION_MISSING_PARAMETERS: { status: 400, description: 'Required template parameters not supplied or empty' },
  FORMATION_OPERATION_IN_PROGRESS: { status: 409, description: 'Write on a formation whose operation runs' },
  FORMATION_PLAN_STALE: { status: 409, description: 'Saved plan no longer matches live state' },
  FORMATION_PROTECTED: { status: 409, description: 'Delete of a protected formation' },
  FORMATION_REPLACE_CLEANUP_FAILED: {
    status: 500,
    description:
      'Superseded resource not deleted after replacement; carried on the formation and operation, never a response status',
  },
  GENERATION_NOT_COMPLETED: { status: 409, description: 'Only a completed generation can be curated' },
  ORCHESTRATION_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter dispatch run ended failed, cancelled or expired',
  },
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: { status: 409, description: 'Delete of a playbook in use' },
  PLAYBOOK_STEP_FAILED: { status: 422, description: 'Step timed out, was rejected, or could not be evaluated' },
  PLAYBOOK_VALIDATION_FAILED: { status: 400, description: 'Playbook definition invalid' },
  TASK_AUTOMATION_CHAIN_LIMIT: {
    status: 409,
    description:
      'Too many machine-driven transitions back-to-back (default ceiling 50); a move by a person, a plain API key or an approval resolution resets the chain',
  },
  TASK_AUTOMATION_PROVENANCE_MISSING: {
    status: 500,
    description:
      'Automation transition with no recorded cause (principal_id, generation_id, orchestration_run_id all null)',
  },
  TASK_GUARD_REJECTED: { status: 400, description: 'Transition guard false' },
  TASK_NOT_FOUND: { status: 404, description: 'Task missing' },
  TASK_PAYLOAD_INVALID: { status: 400, description: 'Payload violates the workflow payload_schema' },
  TASK_STATE_NOT_FOUND: { status: 400, description: 'Create state not declared by the workflow' },
  TASK_TRANSITION_CONFLICT: {
    status: 409,
    description: 'Concurrent change invalidated the transition, or task closed',
  },
  TASK_TRANSITION_NOT_FOUND: { status: 400, description: 'Transition not in the workflow' },
  WORKFLOW_HAS_OPEN_TASKS: { status: 409, description: 'Workflow has open tasks' },
  WORKFLOW_NOT_FOUND: { status: 404, description: 'Workflow missing' },
  WORKFLOW_VALIDATION_FAILED: {
    status: 400,
    description:
      'Workflow invalid (duplicate state names, not exactly one initial state, unknown transition state, malformed guard, on_enter dispatch without target)',
  },
} as const satisfies ErrorTable

declare module '../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof plannedErrors> {}
}
