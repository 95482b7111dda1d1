import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const deciderErrors = {
  DECIDER_AGENT_NOT_TOOL_LESS: {
    status: 400,
    description: "A decider's agent has a tool surface",
    message: 'Agent {agent_id} has tools ({tools}) and cannot answer for a decider',
  },
  DECIDER_TOOL_NOT_CALLABLE: {
    status: 400,
    description: "A decider's tool is not http or pipeline, or its presets pin input or questions",
  },
  DECISION_ANSWER_INVALID: { status: 422, description: "A decider tool's answer breaks the contract" },
  DECISION_INTERRUPTED: {
    status: 500,
    description: 'The worker of a decision was lost and its tool call must not be repeated',
    message: 'The worker was lost after it called the tool, which is not idempotent',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof deciderErrors> {}
}
