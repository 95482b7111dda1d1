import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const datasetErrors = {
  GENERATION_NOT_COMPLETED: { status: 409, description: 'Only a completed generation can be curated' },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof datasetErrors> {}
}
