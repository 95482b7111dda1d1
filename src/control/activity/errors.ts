import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const activityErrors = {
  ACTIVITY_INVALID_CURSOR: {
    status: 400,
    description: 'Activity cursor malformed or not a valid (created_at, id) position',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof activityErrors> {}
}
