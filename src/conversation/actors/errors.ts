import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const actorErrors = {
  ACTOR_HAS_MESSAGES: {
    status: 409,
    description: 'Actor has linked messages; cannot delete',
    message: 'The actor has written {message_count} messages and cannot be deleted',
    hint: 'Merge the actor into another one with POST /actors/{actor_id}/merge, or erase its content with POST /actors/{actor_id}/purge-content.',
  },
  ACTOR_LIMIT_EXCEEDED: {
    status: 429,
    description: 'A limit of an end-user token, or of the actors that a key creates, is spent',
    message: 'The limit {limit} of {max} is exceeded',
  },
  ACTOR_NOT_FOUND: {
    status: 400,
    description: 'Referenced actor missing',
    message: 'Actor {id} not found in this project',
  },
  AGENT_AND_CHAT_EXCLUSIVE: {
    status: 400,
    description: 'Both agent_id and chat_id set on an actor',
    message: 'agent_id and chat_id are both set on the actor',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof actorErrors> {}
}
