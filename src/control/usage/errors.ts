import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const usageErrors = {
  PRICE_IN_EFFECT: {
    status: 409,
    description: 'Delete of a price row already effective',
    message: 'The price {id} is in force: another one may follow it, but what was priced by it stays so',
    hint: 'Write a price of the same component with a later effective_from.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof usageErrors> {}
}
