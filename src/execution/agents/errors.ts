import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const agentErrors = {
  AGENT_HAS_DEPENDENTS: { status: 409, description: 'Agent referenced by generations or traces' },
  AGENT_NOT_FOUND: {
    status: 400,
    description: 'Referenced agent missing',
    message: 'The agent named does not exist in the project',
  },
  FORCED_TOOL_CHOICE_CANNOT_STOP: {
    status: 400,
    description: 'Tool_choice forces tools every step but no has_tool_call stop condition is declared',
    message: 'tool_choice forces a tool on every step but nothing would stop the turn',
  },
  INVALID_OUTPUT_SCHEMA: { status: 400, description: 'Output_schema not a JSON Schema object' },
  NO_ACTIVE_RELEASE: { status: 409, description: 'Agent has no active release to promote or abort' },
  PROMOTION_GATE_UNMET: {
    status: 409,
    description: 'Release promotion_gate has no passing eval run against the canary version',
    message: 'The canary has not passed the eval that gates its promotion',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof agentErrors> {}
}
