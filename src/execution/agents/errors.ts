import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const agentErrors = {
  AGENT_HAS_DEPENDENTS: {
    status: 409,
    description: 'Agent referenced by generations or traces',
    hint: 'Change or delete the resources that reference the agent (meta.counts) first, or repeat with force=true where meta.forcible is true, which deletes them too.',
  },
  AGENT_NOT_FOUND: {
    status: 400,
    description: 'Referenced agent missing',
    message: 'Agent {id} not found in this project',
  },
  FORCED_TOOL_CHOICE_CANNOT_STOP: {
    status: 400,
    description: 'Tool_choice forces tools every step but no has_tool_call stop condition is declared',
    message: 'tool_choice forces a tool on every step and no stop condition ends the turn',
  },
  INVALID_OUTPUT_SCHEMA: { status: 400, description: 'Output_schema not a JSON Schema object' },
  NO_ACTIVE_RELEASE: {
    status: 409,
    description: 'Agent has no active release to promote or abort',
    message: 'Agent {agent_id} has no active release',
    hint: 'Start a release with PUT /agents/{agent_id}/release.',
  },
  PROMOTION_GATE_UNMET: {
    status: 409,
    description: 'Release promotion_gate has no passing eval run against the canary version',
    message: 'Version {agent_version} of the agent has not passed eval {promotion_gate}, which gates its promotion',
    hint: 'Run the eval meta.promotion_gate against version meta.agent_version with POST /evals/{eval_id}/runs until it passes, or abort the release with POST /agents/{agent_id}/release/abort.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof agentErrors> {}
}
