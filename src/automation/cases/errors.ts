import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const caseErrors = {
  CASE_STATE_CONFLICT: {
    status: 409,
    description: "The case's status forbids the call",
    message: 'Case {case_id} is {status}, which does not allow the operation',
    hint: 'Reopen a resolved or closed case with POST /cases/{case_id}/reopen.',
  },
  PLAYBOOK_EXECUTION_CONFLICT: {
    status: 409,
    description: "Command not valid in the execution's or step's state, or another execution is active on the case",
    hint: 'Read the execution with GET /playbook-executions/{execution_id} and check its status and the status of its steps.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof caseErrors> {}
}
