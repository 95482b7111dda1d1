import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const exceptionErrors = {
  EXCEPTION_ALREADY_RESOLVED: {
    status: 409,
    description: 'Exception item already resolved',
    message: 'The exception {id} is resolved already',
    hint: 'Nothing is left to do: what happens again files another exception.',
  },
  EXCEPTION_NOT_FOUND: {
    status: 404,
    description: 'Exception item missing',
    message: 'There is no exception {id}',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof exceptionErrors> {}
}
