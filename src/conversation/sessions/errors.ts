import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const sessionErrors = {
  SESSION_CLOSED: {
    status: 409,
    description: 'Session closed',
    message: 'The session {session_id} is closed',
    hint: 'Open it again with PATCH /sessions/{session_id} and the status open, or start another one with POST /sessions.',
  },
  SESSION_EXPIRED: {
    status: 410,
    description: 'Session expired by inactivity',
    message: 'The session {session_id} has expired',
  },
  SINGLE_SESSION_CONFLICT: {
    status: 409,
    description: 'Open session already exists for the actor',
    message: 'The actor has the open session {session_id} with this agent',
    hint: 'Go on with the session meta.session_id, or close it first.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof sessionErrors> {}
}
