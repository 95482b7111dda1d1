import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const approvalErrors = {
  APPROVAL_ALREADY_RESOLVED: {
    status: 409,
    description: 'Approval already approved, rejected or expired',
    message: 'The approval has been resolved already',
    hint: 'Nothing is left to decide: read the approval for the decision and for what came of it.',
  },
  APPROVAL_EXPIRED: {
    status: 409,
    description: 'Approval expired, can never execute',
    message: 'The approval has expired; what it was about will not be executed',
    hint: 'Have the call proposed again, for example by another turn; expires_in of the guardrail says how long an approval waits.',
  },
  APPROVAL_INVALID_EDIT: {
    status: 400,
    description: "Edited arguments must be a JSON object satisfying the tool's parameters schema",
    message: 'The edited arguments do not fit the tool',
  },
  APPROVAL_NOT_FOUND: {
    status: 404,
    description: 'Approval missing',
    message: 'There is no approval {id}',
  },
  APPROVAL_REASON_REQUIRED: {
    status: 400,
    description: 'Rejecting requires a reason',
    message: 'reason: is required to reject an approval',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof approvalErrors> {}
}
