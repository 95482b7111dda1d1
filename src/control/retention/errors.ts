import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const retentionErrors = {
  CONTENT_ON_HOLD: {
    status: 409,
    description: 'Purge under a legal hold',
    message: 'The project is under a legal hold until {content_hold_until}: its content cannot be erased',
    hint: 'Repeat after meta.content_hold_until, or have content_hold_until taken off the project.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof retentionErrors> {}
}
