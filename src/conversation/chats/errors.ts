import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const chatErrors = {
  CHAT_NOT_FOUND: {
    status: 400,
    description: 'Referenced chat missing',
    message: 'The chat {id} does not exist in the project',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof chatErrors> {}
}
