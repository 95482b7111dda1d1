import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const policyErrors = {
  POLICY_HAS_DEPENDENTS: {
    status: 409,
    description: 'Delete of a policy that is attached',
    hint: 'Take the policy off what meta.sample_ids names, then delete it.',
  },
  POLICY_NOT_FOUND: {
    status: 400,
    description: 'Referenced policy missing',
    message: 'The policy {id} does not exist',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof policyErrors> {}
}
