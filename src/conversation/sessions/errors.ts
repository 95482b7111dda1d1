import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const sessionErrors = {
  SESSION_CLOSED: {
    status: 409,
    description: 'Session closed',
    message: 'Session {session_id} is closed',
    hint: 'Reopen it with PATCH /sessions/{session_id} and status open, or create a session with POST /sessions.',
  },
  SESSION_EXPIRED: {
    status: 410,
    description: 'Session expired by inactivity',
    message: 'Session {session_id} has expired',
  },
  STREAM_LIMIT_EXCEEDED: {
    status: 429,
    description: 'Too many open streams of a project or actor',
    message: 'The {scope} has {max} open streams',
    hint: 'Close streams that are no longer read, or open the stream again after the time in Retry-After.',
  },
  SESSION_UNDER_OPERATOR: {
    status: 409,
    description: 'Session under an operator',
    message: 'An operator answers in session {session_id}',
    hint: 'Messages are stored. The agent answers again after POST /sessions/{session_id}/handback.',
  },
  SESSION_ASSIGNED: {
    status: 409,
    description: 'Session assigned to another user than expected',
    message: 'Session {session_id} is assigned to user {assigned_to}',
    hint: 'Repeat the takeover with this user as expected_assigned_to to take the session over from the user.',
  },
  SESSION_NOT_UNDER_OPERATOR: {
    status: 409,
    description: 'Session not under an operator',
    message: 'The agent answers in session {session_id}',
    hint: 'Take the session over first with POST /sessions/{session_id}/takeover.',
  },
  SINGLE_SESSION_CONFLICT: {
    status: 409,
    description: 'Open session already exists for the actor',
    message: 'The actor already has the open session {session_id} with this agent',
    hint: 'Use the session in meta.session_id, or close it with PATCH /sessions/{session_id} and status closed.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof sessionErrors> {}
}
