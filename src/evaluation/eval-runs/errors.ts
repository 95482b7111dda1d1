import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const evalErrors = {
  EVAL_SCORING_FAILED: { status: 422, description: 'A scorer failed without a code of its own' },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof evalErrors> {}
}
