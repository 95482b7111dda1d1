import { findOrCreateEndUser } from '#conversation/actors/create.ts'
import { actorKind } from '#conversation/actors/model.ts'
import { findByExternalId } from '#conversation/actors/store.ts'
import type { Context } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ClientChatRequest } from './client-request.ts'
import type { OpenAiSession } from './session.ts'

/** Who speaks, and in which conversation. */

const MAX_LENGTH = 255

/** Returns the first of the given headers that is set. @throws VALIDATION_FAILED for a longer value */
function firstHeader(session: OpenAiSession, own: string, others: readonly string[]): string | null {
  const { headers } = session.exchange.req
  const names = [`${session.services.config.HEADER_PREFIX}${own}`, ...others]
  for (const name of names) {
    const value = headers[name.toLowerCase()]
    if (typeof value !== 'string' || value.trim() === '') continue
    if (value.length > MAX_LENGTH)
      raiseInvalid({ code: 'TOO_BIG', path: name, message: `must be at most ${MAX_LENGTH} characters` })
    return value.trim()
  }
  return null
}

/** An end user by the ID of the platform or of the client. */
export type EndUserRef = { actor_id: string } | { external_id: string }

/** Returns the end user of a request; null for none. An end user's token names its own. */
export function endUserOf(session: OpenAiSession, { user }: Pick<ClientChatRequest, 'user'>): EndUserRef | null {
  const own = session.caller.end_user
  if (own) return { actor_id: own.actor_id }
  const external_id = firstHeader(session, 'Actor', session.services.config.OPENAI_ACTOR_HEADERS) ?? user
  return external_id === null ? null : { external_id }
}

/** Prefix of the keys of A2A contexts, which clients cannot use. */
const RESERVED_KEY = /^a2a:/

/**
 * Returns the key of the conversation of a request: the given one, or the key in a header or in the metadata; null for none.
 * @throws VALIDATION_FAILED
 */
export function conversationKeyOf(
  session: OpenAiSession,
  { session_key }: Pick<ClientChatRequest, 'session_key'>,
  given: string | null = null,
): string | null {
  const key =
    given ?? firstHeader(session, 'Session-Key', session.services.config.OPENAI_SESSION_HEADERS) ?? session_key
  if (key !== null && RESERVED_KEY.test(key))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'metadata.session_key', message: 'must not begin with a2a:' })
  return key
}

/**
 * Returns the ID of an end user, who is created if the caller may; its row is locked against its deletion.
 * @throws FORBIDDEN for an unknown end user without actors:CreateActor; ACTOR_LIMIT_EXCEEDED for a key that has created too
 *   many end users in an hour
 */
export async function requireActor(
  tx: Tx,
  context: Pick<Context, 'allow' | 'caller' | 'services'>,
  project_id: string,
  endUser: EndUserRef | null,
): Promise<string | null> {
  if (endUser === null) return null
  if ('actor_id' in endUser) return endUser.actor_id
  const { external_id } = endUser
  const existing = await findByExternalId(tx, project_id, external_id)
  if (existing) return existing.id
  context.allow('actors:CreateActor', { kind: actorKind, project_id })
  const { actor } = await findOrCreateEndUser(tx, context, { project_id, external_id, name: external_id })
  return actor.id
}
