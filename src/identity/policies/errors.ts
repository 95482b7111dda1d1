import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const policyErrors = {
  POLICY_HAS_DEPENDENTS: {
    status: 409,
    description: 'Policy is attached and cannot be deleted',
    hint: 'Detach the policy from all resources listed by GET /policies/{policy_id}/attachments, then delete it.',
  },
  POLICY_NOT_FOUND: {
    status: 400,
    description: 'Referenced policy does not exist',
    message: 'Policy {id} not found',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof policyErrors> {}
}
