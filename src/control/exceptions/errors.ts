import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const exceptionErrors = {
  EXCEPTION_ALREADY_RESOLVED: {
    status: 409,
    description: 'Exception already resolved',
    message: 'Exception {id} is already resolved',
    hint: 'No action is needed; a recurrence files a new exception.',
  },
  EXCEPTION_NOT_FOUND: {
    status: 404,
    description: 'Exception not found',
    message: 'Exception {id} not found',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof exceptionErrors> {}
}
