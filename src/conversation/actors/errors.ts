import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const actorErrors = {
  ACTOR_HAS_MESSAGES: {
    status: 409,
    description: 'Actor has linked messages; cannot delete',
    message: 'The actor has written messages and cannot be deleted',
  },
  ACTOR_NOT_FOUND: {
    status: 400,
    description: 'Referenced actor missing',
    message: 'The actor named does not exist in the project',
  },
  AGENT_AND_CHAT_EXCLUSIVE: {
    status: 400,
    description: 'Both agent_id and chat_id set on an actor',
    message: 'An actor is linked to an agent or to a chat, not to both',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof actorErrors> {}
}
