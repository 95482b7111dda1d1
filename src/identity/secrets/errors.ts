import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const secretErrors = {
  SECRET_HAS_DEPENDENTS: {
    status: 409,
    description: 'Secret referenced by AI providers; force=true deletes dependents',
  },
  SECRET_NOT_FOUND: {
    status: 400,
    description: 'Secret named by a secret token missing in the project',
    message: 'The secret named does not exist in the project',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof secretErrors> {}
}
