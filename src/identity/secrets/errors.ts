import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const secretErrors = {
  SECRET_HAS_DEPENDENTS: {
    status: 409,
    description: 'Secret is referenced by other resources',
    hint: 'Update the resources in meta.counts first, or repeat with force=true if meta.forcible is true, which deletes them too.',
  },
  SECRET_NOT_FOUND: {
    status: 400,
    description: 'Secret of a secret reference not found in the project',
    message: 'Secret {secret_id} not found in this project',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof secretErrors> {}
}
