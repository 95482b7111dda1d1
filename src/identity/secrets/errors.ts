import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const secretErrors = {
  SECRET_HAS_DEPENDENTS: {
    status: 409,
    description: 'Secret referenced by AI providers; force=true deletes dependents',
    hint: 'meta.counts says what refers to the secret. Change that first, or repeat with force=true where meta.forcible is true, which deletes it too.',
  },
  SECRET_NOT_FOUND: {
    status: 400,
    description: 'Secret named by a secret token missing in the project',
    message: 'The secret {secret_id} does not exist in the project',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof secretErrors> {}
}
