import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const approvalErrors = {
  APPROVAL_ALREADY_RESOLVED: {
    status: 409,
    description: 'Approval already approved, rejected or expired',
    message: 'Approval {id} is already {status}',
    hint: 'Read the decision and the outcome of the call with GET /approvals/{approval_id}.',
  },
  APPROVAL_EXPIRED: {
    status: 409,
    description: 'Approval expired, can never execute',
    message: 'Approval {id} expired; the proposed call will not be executed',
    hint: 'Start another turn that proposes the call again; raise expires_in of the guardrail to keep approvals open longer.',
  },
  APPROVAL_INVALID_EDIT: {
    status: 400,
    description: "Edited arguments must be a JSON object satisfying the tool's parameters schema",
    message: 'The edited arguments do not match the parameters of the tool',
  },
  APPROVAL_NOT_FOUND: {
    status: 404,
    description: 'Approval missing',
    message: 'Approval {id} not found',
  },
  APPROVAL_REASON_REQUIRED: {
    status: 400,
    description: 'Rejecting requires a reason',
    message: 'reason: is required to reject an approval',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof approvalErrors> {}
}
