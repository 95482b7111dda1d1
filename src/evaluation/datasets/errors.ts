import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const datasetErrors = {
  GENERATION_NOT_COMPLETED: {
    status: 409,
    description: 'Only a completed generation can be curated',
    message: 'The generation {generation_id} is {status}; only a completed one can be copied',
    hint: 'Wait until the generation is completed, or name another one.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof datasetErrors> {}
}
