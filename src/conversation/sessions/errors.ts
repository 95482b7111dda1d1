import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const sessionErrors = {
  SESSION_CLOSED: { status: 409, description: 'Session closed', message: 'The session is closed' },
  SESSION_EXPIRED: { status: 410, description: 'Session expired by inactivity', message: 'The session has expired' },
  SINGLE_SESSION_CONFLICT: {
    status: 409,
    description: 'Open session already exists for the actor',
    message: 'The actor has an open session with this agent',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof sessionErrors> {}
}
