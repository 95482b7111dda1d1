import assert from 'node:assert/strict'
import { CHAT_ACTIONS, endUser } from '../conversation/end-user-support.ts'
import { startSessionApp } from '../conversation/session-support.ts'
import { refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { said } from './ag-ui-support.ts'
import { asking, requestUi } from './ui-support.ts'

type Json = Record<string, any>

describe('hostile and careless clients of chats of the AI SDK', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', STREAM_PING_INTERVAL_MS: '600000' },
      actions: [...CHAT_ACTIONS, 'files:*', 'shares:*'],
    }),
  )
  let agentId: string

  before(async () => {
    agentId = await app.agent()
  })

  const user = (fields: object = {}) => endUser(app, { agent_ids: [agentId], ...fields })
  const ask = (token: string, body: Json) => requestUi(app, { token, agentId, body })
  const texts = async (token: string, id: string) =>
    (await requestUi(app, { token, agentId, path: `/${id}` })).body.messages.map(({ role, parts }: Json) => [
      role,
      parts.map(({ text }: Json) => /"text":"(\w+)"/.exec(text)?.[1] ?? text).join(),
    ])

  it('keep the chat that a refused request would have rewound', async () => {
    const ann = await user({ limits: { messages_per_hour: 5 } })
    const first = asking(said({ text: 'one' }))
    await ask(ann.token, first)
    const chat: Json = { ...first, messages: [...first.messages, ...asking(said({ text: 'two' })).messages] }
    await ask(ann.token, chat)
    const had = [
      ['user', 'one'],
      ['assistant', 'one'],
      ['user', 'two'],
      ['assistant', 'two'],
    ]
    const [message] = first.messages
    const file = { type: 'file', mediaType: 'image/png', url: 'http://127.0.0.1/a.png' }
    for (const parts of [[file], [], [{ type: 'text', text: '' }]]) {
      const edited = { ...chat, messageId: message.id, messages: [{ ...message, parts }] }
      const { chunks } = await ask(ann.token, edited)
      assert.deepEqual(
        chunks.map(({ type }) => type),
        ['error'],
        JSON.stringify(parts),
      )
      assert.deepEqual(await texts(ann.token, first.id), had, JSON.stringify(parts))
    }
    const again = { ...first, trigger: 'regenerate-message' }
    const limited = { ...again, messages: [message] }
    let reply = await ask(ann.token, limited)
    for (let count = 0; count < 3 && reply.status === 200; count++) reply = await ask(ann.token, limited)
    assert.deepEqual(refusalOf(reply), [429, 'ACTOR_LIMIT_EXCEEDED'])
    const left = await texts(ann.token, first.id)
    assert.ok(left.at(-1)[0] === 'assistant', JSON.stringify(left))
    const { data } = (await ann.get('/sessions')).body
    assert.equal(data.filter(({ status }: Json) => status === 'open').length, 1)
  })

  const PATHS = { '/x': 'GET', '/x/stream': 'GET', '/x/stop': 'POST' }

  it('learn nothing of an agent of another project', async () => {
    const { token } = (await app.projectWith(CHAT_ACTIONS)).key
    for (const [path, method] of Object.entries(PATHS))
      for (const id of [agentId, 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e']) {
        const reply = await requestUi(app, { token: token as string, agentId: id, path, method })
        assert.deepEqual(refusalOf(reply), [404, 'RESOURCE_NOT_FOUND'], path)
      }
  })

  it('of a key need the right to send messages for each request', async () => {
    const document = { statement: [{ effect: 'Allow', action: ['agents:*'], resource: [`srn:${app.projectId}:*:*`] }] }
    const policy = await app.admin.post('/policies', { document })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const token = key.body.secret
    for (const [path, method] of Object.entries(PATHS))
      assert.deepEqual(refusalOf(await requestUi(app, { token, agentId, path, method })), [403, 'FORBIDDEN'], path)
    assert.deepEqual(refusalOf(await ask(token, asking('x'))), [403, 'FORBIDDEN'])
  })

  it('of a key spend a request for each new message', async () => {
    const resource = [`srn:${app.projectId}:*:*`]
    const document = { statement: [{ effect: 'Allow', action: CHAT_ACTIONS, resource }] }
    const policy = await app.admin.post('/policies', { document })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const limit = { scope: 'api_key', scope_ref: key.body.id, metric: 'requests', window: 'rolling_24h', limit: 3 }
    assert.equal((await app.admin.post('/quotas', { project_id: app.projectId, ...limit })).status, 201)
    const messages = Array.from({ length: 6 }, (_, count) => asking(`message ${count}`).messages[0])
    const reply = await ask(key.body.secret, { id: crypto.randomUUID(), messages })
    assert.deepEqual(refusalOf(reply), [429, 'QUOTA_EXCEEDED'])
    const { data } = (await app.key.get('/sessions?limit=1')).body
    assert.equal((await app.messages(data[0])).length, 3)
  })
})
