import type { Codes, ErrorTable } from '../core/api/errors.ts'

export const plannedErrors = {
  CASE_STATE_CONFLICT: { status: 409, description: "The case's status forbids the call" },
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
  HOOK_INVALID_JSON: { status: 400, description: 'Inbound hook body not JSON' },
  HOOK_PAYLOAD_TOO_LARGE: { status: 413, description: 'Inbound hook body over 1 MiB' },
  INVALID_CRON_EXPRESSION: { status: 400, description: 'Triggers need a strict 5-field cron evaluated in UTC' },
  INVALID_EVENT_PATTERN: {
    status: 400,
    description:
      'Pattern must be *, prefix.*, or an exact name; platform-namespace patterns must match a registered event',
  },
  ORCHESTRATION_CYCLE_DETECTED: { status: 422, description: 'Graph has a cycle' },
  ORCHESTRATION_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter dispatch run ended failed, cancelled or expired',
  },
  ORCHESTRATION_HUMAN_NODE_MISMATCH: { status: 400, description: 'Node is not the active human node' },
  ORCHESTRATION_MAX_ITERATIONS_EXCEEDED: { status: 422, description: 'Run exceeded maximum iterations' },
  ORCHESTRATION_NESTED_RUN_FAILED: {
    status: 422,
    description:
      'Loop or sub_orchestration child ended non-success with no code of its own (a child with a code fails the parent under that code)',
  },
  ORCHESTRATION_NODE_FAILED: { status: 422, description: 'A node failed' },
  ORCHESTRATION_NOT_FOUND: { status: 404, description: 'Orchestration missing' },
  ORCHESTRATION_POLL_EXHAUSTED: { status: 422, description: 'Poll node hit attempt limit with fail_on_timeout set' },
  ORCHESTRATION_RUN_DEPTH_LIMIT: { status: 409, description: 'Nested child run would exceed depth bound' },
  ORCHESTRATION_RUN_NOT_AWAITING_INPUT: { status: 409, description: 'Run not awaiting input' },
  ORCHESTRATION_RUN_NOT_CANCELLABLE: { status: 409, description: 'Run already terminal' },
  ORCHESTRATION_RUN_NOT_FOUND: { status: 404, description: 'Run missing' },
  ORCHESTRATION_RUN_NOT_PAUSABLE: { status: 409, description: 'Pause of a terminal run' },
  ORCHESTRATION_RUN_NOT_RETRYABLE: { status: 409, description: 'Retry of a run that is live or succeeded' },
  ORCHESTRATION_RUN_PAUSED: { status: 409, description: 'Human input while a pause is in force' },
  ORCHESTRATION_VALIDATION_FAILED: {
    status: 400,
    description:
      'Graph invalid (dangling edge, missing field, cycle, input_mapping naming a state key no upstream node writes)',
  },
  PLAYBOOK_EXECUTION_CONFLICT: {
    status: 409,
    description: "Command not valid in the execution's or step's state, or another execution is active on the case",
  },
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: { status: 409, description: 'Delete of a playbook in use' },
  PLAYBOOK_STEP_FAILED: { status: 422, description: 'Step timed out, was rejected, or could not be evaluated' },
  PLAYBOOK_VALIDATION_FAILED: { status: 400, description: 'Playbook definition invalid' },
  QUEUE_DRIVER_MISCONFIGURED: { status: 500, description: 'Orchestration queue driver misconfigured' },
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
  TRIGGER_ACTION_NOT_ALLOWED: {
    status: 400,
    description:
      'Action only valid for tool targets (required for soat/mcp tools); cron required for schedule triggers and rejected otherwise',
  },
  TRIGGER_CAUSATION_LIMIT: { status: 409, description: 'Event trigger already in the causal chain or chain too deep' },
  TRIGGER_CREATOR_UNAVAILABLE: { status: 409, description: 'Trigger creator no longer exists' },
  TRIGGER_FIRING_ABANDONED: { status: 500, description: 'The worker died on every delivery of a tool firing' },
  TRIGGER_INPUT_INVALID: { status: 400, description: 'Effective input invalid for target' },
  TRIGGER_NOT_ACTIVE: { status: 409, description: 'Trigger inactive' },
  TRIGGER_RECURSION_FORBIDDEN: { status: 403, description: 'Trigger-scoped credential cannot fire a trigger' },
  TRIGGER_TARGET_NOT_FOUND: { status: 400, description: 'Target missing or type mismatch' },
  TRIGGER_TYPE_IMMUTABLE: { status: 400, description: 'Trigger type cannot change' },
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
