import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const agentErrors = {
  AGENT_HAS_DEPENDENTS: {
    status: 409,
    description: 'Agent referenced by generations or traces',
    hint: 'meta.counts says what refers to the agent. Change that first, or repeat with force=true where meta.forcible is true, which deletes it too.',
  },
  AGENT_NOT_FOUND: {
    status: 400,
    description: 'Referenced agent missing',
    message: 'The agent {id} does not exist in the project',
  },
  FORCED_TOOL_CHOICE_CANNOT_STOP: {
    status: 400,
    description: 'Tool_choice forces tools every step but no has_tool_call stop condition is declared',
    message: 'tool_choice forces a tool on every step but nothing would stop the turn',
  },
  INVALID_OUTPUT_SCHEMA: { status: 400, description: 'Output_schema not a JSON Schema object' },
  NO_ACTIVE_RELEASE: {
    status: 409,
    description: 'Agent has no active release to promote or abort',
    message: 'The agent {agent_id} has no release under way',
    hint: 'PUT /agents/{agent_id}/release starts one.',
  },
  PROMOTION_GATE_UNMET: {
    status: 409,
    description: 'Release promotion_gate has no passing eval run against the canary version',
    message:
      'The version {agent_version} of the agent has not passed the eval {promotion_gate}, which gates its promotion',
    hint: 'Run the eval meta.promotion_gate against the version meta.agent_version with POST /evals/{eval_id}/runs until it passes, or abort the release.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof agentErrors> {}
}
