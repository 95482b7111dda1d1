import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const usageErrors = {
  PRICE_IN_EFFECT: {
    status: 409,
    description: 'Delete of a price row already effective',
    message: 'The price is in force: another one may follow it, but what was priced by it stays so',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof usageErrors> {}
}
