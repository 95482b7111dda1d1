import assert from 'node:assert/strict'
import { expectStatus } from '../conversation/session-support.ts'
import { statementsOfEach } from '../support/statements.ts'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const ACTIONS = ['actors:*', 'agents:*', 'chats:*', 'generations:*', 'sessions:*']

describe('the OpenAI mount: round trips', () => {
  // Without workers, turns stay queued and only requests send statements.
  const app = forSuite(() => startOpenAiApp({ workers: [], actions: ACTIONS }))

  const ROUNDS = 5
  /** Returns the number of statements that a call sends in every round after the first, which fills the caches. */
  const statements = async (call: (round: number) => Promise<unknown>): Promise<number> => {
    const rounds: string[][] = []
    for (let round = 1; round <= ROUNDS; round++) {
      app.statements.length = 0
      await call(round)
      rounds.push([...app.statements])
    }
    const common = statementsOfEach(rounds.slice(1))
    return common.filter(text => !/heartbeat|last_used_at|browser_used_at|muster_/.test(text)).length
  }
  /** Begins a turn by the mount, and returns its session. */
  const begin = async (input: unknown, headers: Record<string, string> = {}): Promise<string> => {
    const response = await app.send('/responses', { model: app.agentId, background: true, input }, { headers })
    assert.equal(response.status, 200, await response.clone().text())
    return response.headers.get('x-svc-session-id') as string
  }
  const cancelTurns = async (sessionId: string): Promise<void> => {
    const { data } = expectStatus(await app.key.get(`/generations?session_id=${sessionId}`), 200)
    for (const { id } of data as Json[]) await app.key.post(`/generations/${id}/cancel`)
  }

  for (const [kind, stream, count] of [
    ['whole', false, 2],
    ['streamed', true, 3],
  ] as const)
    it(`of a ${kind} completion are ${count}: its target, then its usage and its audit entry`, async () => {
      const chat = await app.chat({ model: 'double-1' })
      const body = { stream, messages: [{ role: 'user', content: 'a' }] }
      for (const model of [chat.id, `${app.providerId}/double-1`]) {
        const complete = async () => {
          const response = await app.send('/chat/completions', { ...body, model })
          assert.equal(response.status, 200, await response.text())
        }
        assert.equal(await statements(complete), count)
      }
      const own = async () => expectStatus(await app.key.post('/chat/completions', { ...body, chat_id: chat.id }), 200)
      assert.equal(await statements(own), count)
    })

  it('of a turn are as many as of the same call on /api/v1', async () => {
    const messages = [{ role: 'user', content: 'a' }]
    const own = await statements(async () =>
      expectStatus(await app.key.post(`/agents/${app.agentId}/generate?wait=false`, { messages }), 202),
    )
    assert.equal(await statements(() => begin('a')), own)
  })

  it('of a turn with a session key are at most two more than of the calls on /api/v1', async () => {
    const { id: actor_id } = (await app.key.post('/actors', { name: 'ann', external_id: 'ann' })).body
    const headers = (round: number, of: string) => ({ 'x-svc-actor': 'ann', 'x-svc-session-key': `${of}-${round}` })
    const say = async (session: Json) => {
      expectStatus(await app.key.post(`/sessions/${session.id}/messages`, { message: 'a' }), 201)
      expectStatus(await app.key.post(`/sessions/${session.id}/generate?wait=false`, {}), 202)
    }
    const create = () => app.session({ actor_id })
    const first = await statements(async () => say(await create()))
    assert.ok((await statements(round => begin('a', headers(round, 'first')))) <= first + 2)

    const sessions: Json[] = []
    for (let round = 1; round <= ROUNDS; round++) {
      sessions.push(await create())
      await cancelTurns(await begin('a', headers(round, 'next')))
    }
    const next = await statements(round => say(sessions[round - 1]))
    const input = ['a', 'b'].map(content => ({ role: 'user', content }))
    assert.ok((await statements(round => begin(input, headers(round, 'next')))) <= next + 2)
  })
})
