import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const chatErrors = {
  CHAT_NOT_FOUND: {
    status: 400,
    description: 'Referenced chat missing',
    message: 'Chat {id} not found in this project',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof chatErrors> {}
}
