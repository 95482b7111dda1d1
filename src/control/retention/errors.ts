import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const retentionErrors = {
  CONTENT_ON_HOLD: {
    status: 409,
    description: 'Purge under a legal hold',
    message: 'The project is under a legal hold: its content cannot be erased',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof retentionErrors> {}
}
