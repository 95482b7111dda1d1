import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const caseErrors = {
  CASE_STATE_CONFLICT: {
    status: 409,
    description: "The case's status forbids the call",
    message: 'The case {case_id} is {status}, which does not allow this',
    hint: 'Read the case. One that is resolved or closed is opened again with POST /cases/{case_id}/reopen.',
  },
  PLAYBOOK_EXECUTION_CONFLICT: {
    status: 409,
    description: "Command not valid in the execution's or step's state, or another execution is active on the case",
    hint: 'Read the execution: its status and those of its steps say which commands it takes.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof caseErrors> {}
}
