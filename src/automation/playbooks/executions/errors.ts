import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const executionErrors = {
  PLAYBOOK_STEP_FAILED: {
    status: 422,
    description: 'Step timed out, was rejected, or could not be evaluated',
    message: 'Step {step_key} failed ({reason})',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof executionErrors> {}
}
