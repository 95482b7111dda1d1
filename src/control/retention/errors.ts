import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const retentionErrors = {
  CONTENT_ON_HOLD: {
    status: 409,
    description: 'Content erasure under a legal hold',
    message: 'Project is under a legal hold until {content_hold_until} and its content cannot be erased',
    hint: 'Retry after meta.content_hold_until, or clear content_hold_until with PATCH /projects/{project_id}.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof retentionErrors> {}
}
