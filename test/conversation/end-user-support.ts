import assert from 'node:assert/strict'
import { type Client, client } from '../support/app.ts'
import { type Frame, frameIn } from '../support/frames.ts'
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

/** Opens an event stream as an end user: a POST when there is a body. `read` returns the next event, null at the end. */
export async function openEndUserStream(
  url: string,
  token: string,
  path: string,
  body?: object,
): Promise<{ read(): Promise<Frame | null>; close(): void }> {
  const controller = new AbortController()
  const response = await fetch(`${url}/api/v1${path}`, {
    method: body ? 'POST' : 'GET',
    headers: { authorization: `Bearer ${token}`, ...(body ? { 'content-type': 'application/json' } : {}) },
    body: body ? JSON.stringify(body) : undefined,
    signal: controller.signal,
  })
  assert.equal(response.status, 200, response.status === 200 ? '' : await response.text())
  const chunks = (response.body as ReadableStream<Uint8Array>)
    .pipeThrough(new TextDecoderStream())
    [Symbol.asyncIterator]()
  let pending = ''
  return {
    async read() {
      for (;;) {
        const end = pending.indexOf('\n\n')
        if (end < 0) {
          const next = await chunks.next()
          if (next.done) return null
          pending += next.value
          continue
        }
        const frame = frameIn(pending.slice(0, end))
        pending = pending.slice(end + 2)
        if (frame) return frame
      }
    },
    close: () => controller.abort(),
  }
}
