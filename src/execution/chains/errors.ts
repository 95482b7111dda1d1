import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const chainErrors = {
  CHAIN_NOT_FOUND: {
    status: 404,
    description: 'Continuation chain missing',
    message: 'Chain {id} not found',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof chainErrors> {}
}
