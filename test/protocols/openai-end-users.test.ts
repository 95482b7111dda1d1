import assert from 'node:assert/strict'
import { CHAT_ACTIONS, type EndUserClient, endUser } from '../conversation/end-user-support.ts'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const INSTRUCTIONS = 'hidden instructions of the agent'

describe('the OpenAI mount: tokens of end users', () => {
  const app = forSuite(() =>
    startOpenAiApp({ actions: [...CHAT_ACTIONS, 'chats:*'], env: { PROVIDER_MAX_RETRIES: '0' } }),
  )
  let agentId: string
  let requests: () => Promise<Json[]>
  let ann: EndUserClient

  before(async () => {
    const scripted = await app.scripted(
      [
        { when: { user: 'fail' }, reply: { error: { status: 401, message: 'vendor secret text' } } },
        { reply: { text: 'hello', reasoning: 'hidden thought' } },
      ],
      { instructions: INSTRUCTIONS, client_instructions: 'system', request_settings: ['temperature'] },
    )
    agentId = scripted.agentId
    requests = scripted.requests
    ann = await endUser(app, { agent_ids: [agentId] })
  })

  const ask = (user: EndUserClient, text: string, headers: Record<string, string> = {}, more: Json = {}) =>
    app.send(
      '/chat/completions',
      {
        model: agentId,
        messages: [
          { role: 'system', content: 'From outside' },
          { role: 'user', content: text },
        ],
        ...more,
      },
      { token: user.token, headers },
    )

  it('list and run only the agents of the token', async () => {
    const { data } = await app.openai(ann.token).models.list()
    assert.deepEqual(
      data.map(({ id }) => id),
      [agentId],
    )
    const chat = await app.chat()
    for (const model of [app.agentId, chat.id, `${app.providerId}/m`]) {
      const refused = await app.send(
        '/chat/completions',
        { model, messages: [{ role: 'user', content: 'a' }] },
        { token: ann.token },
      )
      assert.deepEqual([refused.status, ((await refused.json()) as Json).error.param], [404, 'model'], model)
    }
    assert.equal((await app.send('/embeddings', { input: 'a' }, { token: ann.token })).status, 403)
  })

  it('see no usage, model or version, and their settings and system texts have no effect', async () => {
    const response = await ask(ann, 'hi', { 'x-svc-actor': 'someone else' }, { temperature: 0.3, user: 'other' })
    const text = await response.text()
    assert.equal(response.status, 200, text)
    const body = JSON.parse(text)
    assert.deepEqual([body.usage.total_tokens, body.system_fingerprint, body.model], [0, null, agentId])
    assert.doesNotMatch(text, /hidden thought/)
    const streamed = await (await ask(ann, 'hi', {}, { stream: true })).text()
    assert.match(streamed, /hello/)
    assert.doesNotMatch(streamed, /hidden thought|"v1"/)
    const sent = (await requests()).at(-1)?.body
    assert.equal(sent.temperature, undefined)
    assert.equal(sent.messages[0].content, INSTRUCTIONS)
    const session = (await app.admin.get(`/sessions/${response.headers.get('x-svc-session-id')}`)).body
    assert.deepEqual([session.actor_id, session.ephemeral], [ann.actorId, true])
  })

  it('hold separate conversations, whatever the key', async () => {
    const bob = await endUser(app, { agent_ids: [agentId] })
    const headers = { 'x-svc-session-key': 'shared' }
    const first = await ask(ann, 'hi', headers)
    const other = await ask(bob, 'hi', headers)
    assert.deepEqual([first.status, other.status], [200, 200])
    assert.notEqual(first.headers.get('x-svc-session-id'), other.headers.get('x-svc-session-id'))
    const listed = await ann.get('/sessions')
    assert.deepEqual(
      listed.body.data.map(({ id }: Json) => id),
      [first.headers.get('x-svc-session-id')],
    )
  })

  it('see no texts of vendors in errors', async () => {
    const refused = await ask(ann, 'fail')
    const text = await refused.text()
    assert.equal(refused.status, 424)
    assert.doesNotMatch(text, /vendor secret|provider_|double/)
  })

  it('of listed sessions make no others, and a revoked token is refused', async () => {
    const session = (await ann.post('/sessions', { agent_id: agentId })).body
    const narrow = await endUser(app, { agent_ids: [agentId], session_ids: [session.id] }, ann.actorId)
    assert.equal((await ask(narrow, 'hi')).status, 403)
    assert.equal((await ask(narrow, 'hi', { 'x-svc-session-key': 'new' })).status, 403)
    await app.key.post(`/actors/${ann.actorId}/tokens/revoke`)
    assert.equal((await ask(narrow, 'hi')).status, 401)
  })

  it('limits of the token count the messages of the mount', async () => {
    const limited = await endUser(app, { agent_ids: [agentId], limits: { message_chars: 100, requests_per_minute: 2 } })
    assert.equal((await ask(limited, 'x'.repeat(101))).status, 429)
    assert.equal((await ask(limited, 'a')).status, 200)
    const statuses = [(await ask(limited, 'b')).status, (await ask(limited, 'c')).status]
    assert.ok(statuses.includes(429), String(statuses))
  })

  it('of keys are created at most ACTORS_CREATED_PER_HOUR per key', async () => {
    const limited = await startOpenAiApp({ actions: CHAT_ACTIONS, env: { ACTORS_CREATED_PER_HOUR: '1' } })
    try {
      const { agentId: model } = await limited.scripted([{ reply: { text: 'hello' } }])
      const say = async (name: string) => {
        const response = await limited.send('/chat/completions', {
          model,
          user: name,
          messages: [{ role: 'user', content: 'a' }],
        })
        return { status: response.status, code: ((await response.json()) as Json).error?.code }
      }
      assert.equal((await say('first')).status, 200)
      assert.deepEqual(await say('second'), { status: 429, code: 'ACTOR_LIMIT_EXCEEDED' })
      assert.equal((await say('first')).status, 200)
    } finally {
      await limited.close()
    }
  })
})
