import { type Client, client } from '../support/app.ts'
import { expectStatus, type SessionApp } from './session-support.ts'

type Json = Record<string, any>

/** Actions of a key that issues tokens with the scope `chat`. */
export const CHAT_ACTIONS = ['actors:*', 'agents:*', 'generations:*', 'sessions:*']

let actors = 0

/** An end user with a token. */
export type EndUserClient = Client & { actorId: string; jti: string; token: string }

/** Issues a token by the key of the application for a new end user, or for the one given. */
export async function endUser(app: SessionApp, fields: Json = {}, actorId?: string): Promise<EndUserClient> {
  const body = { agent_ids: [app.agentId], ...fields }
  const issued = expectStatus(
    actorId === undefined
      ? await app.key.post('/actors/tokens', { actor: { external_id: `customer-${++actors}`, name: 'Ann' }, ...body })
      : await app.key.post(`/actors/${actorId}/tokens`, body),
    201,
  )
  return { ...client(app.url, issued.token), actorId: issued.actor_id, jti: issued.jti, token: issued.token }
}

/** A session of an end user with a message. */
export async function chat(user: Client, agentId: string, message = 'hello'): Promise<Json> {
  const session = expectStatus(await user.post('/sessions', { agent_id: agentId }), 201)
  expectStatus(await user.post(`/sessions/${session.id}/messages`, { message }), 201)
  return session
}
