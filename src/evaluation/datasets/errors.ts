import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const datasetErrors = {
  GENERATION_NOT_COMPLETED: {
    status: 409,
    description: 'Generation not completed',
    message: 'Generation {generation_id} is {status} and cannot be copied',
    hint: 'Wait until the generation is completed (GET /generations/{generation_id}).',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof datasetErrors> {}
}
