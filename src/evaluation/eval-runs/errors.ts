import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const evalErrors = {
  EVAL_SCORING_FAILED: { status: 422, description: 'Scorer failed without a specific error code' },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof evalErrors> {}
}
