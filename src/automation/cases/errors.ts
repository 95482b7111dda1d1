import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const caseErrors = {
  CASE_STATE_CONFLICT: { status: 409, description: "The case's status forbids the call" },
  PLAYBOOK_EXECUTION_CONFLICT: {
    status: 409,
    description: "Command not valid in the execution's or step's state, or another execution is active on the case",
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof caseErrors> {}
}
