import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const usageErrors = {
  PRICE_IN_EFFECT: {
    status: 409,
    description: 'Deletion of a price that is already in effect',
    message: 'Price {id} is in effect and cannot be deleted',
    hint: 'Add a price for the same component with a later effective_from.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof usageErrors> {}
}
