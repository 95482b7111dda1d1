import assert from 'node:assert/strict'
import { CHAT_ACTIONS, type EndUserClient, endUser } from '../conversation/end-user-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { longestTurn } from '../support/event-loop.ts'
import { pngHeader } from '../support/images.ts'
import { forSuite } from '../support/suite.ts'
import { calls, said } from './ag-ui-support.ts'
import { type OpenAiApp, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

describe('the OpenAI mount: hostile callers', function () {
  this.timeout(30_000)
  let app: OpenAiApp
  const target = forSuite(startTarget)
  let agentId: string

  before(async () => {
    target.answer = json({ hidden_result: 1 })
    app = await startOpenAiApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: [...CHAT_ACTIONS, 'chats:*', 'embeddings:*'],
    })
    agentId = await app.agent({
      client_instructions: 'block',
      accept_client_tools: true,
      tool_bindings: [{ tool: { name: 'hidden_tool', execute: { url: `${target.url}/x` } } }],
    })
  })
  after(async () => {
    await app.close()
  })

  const user = (fields: object = {}, actorId?: string): Promise<EndUserClient> =>
    endUser(app, { agent_ids: [agentId], ...fields }, actorId)
  const post = async (
    user: { token: string | null },
    path: string,
    body: Json,
    headers: Record<string, string> = {},
  ) => {
    const response = await app.send(path, { model: agentId, ...body }, { token: user.token, headers })
    const text = await response.text()
    return {
      status: response.status,
      session: response.headers.get('x-svc-session-id'),
      body: JSON.parse(text) as Json,
    }
  }
  const ask = (
    user: { token: string | null },
    messages: unknown,
    headers: Record<string, string> = {},
    more: Json = {},
  ) => post(user, '/chat/completions', { messages, ...more }, headers)
  const asked = (text: string) => [{ role: 'user', content: text }]

  it('start blocks in a text, or get a reply that starts them, without a long turn of the event loop', async () => {
    const starts = (bytes: number) => '<details '.repeat(Math.floor(bytes / 9))
    const history = (text: string) => [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: text },
      { role: 'user', content: 'two' },
    ]
    const turn = async (work: () => Promise<void>) => assert.ok((await longestTurn(work)) < 1_000)
    const ann = await user()
    await turn(async () => {
      const refused = await ask(ann, history(starts(250_000)), { 'x-svc-session-key': 'blocks' })
      assert.deepEqual([refused.status, refused.body.error.code], [429, 'ACTOR_LIMIT_EXCEEDED'])
    })
    await turn(async () => {
      await ask(app.key, history(starts(4_000_000)), { 'x-svc-session-key': 'blocks' })
    })
    const { agentId: model } = await app.scripted([{ reply: { text: starts(270_000) } }])
    const headers = { 'x-svc-session-key': 'reply of blocks' }
    await ask(app.key, asked('one'), headers, { model })
    await turn(async () => {
      assert.equal((await ask(app.key, history('other'), headers, { model })).status, 200)
    })
  })

  it('get no answer of the agent while an operator has the session: their messages are stored', async () => {
    const ann = await user()
    const headers = { 'x-svc-session-key': 'taken' }
    const first = await ask(ann, asked(said({ text: 'one' })), headers)
    assert.equal((await app.admin.post(`/sessions/${first.session}/takeover`, {})).status, 200)
    const history = [...asked(said({ text: 'one' })), { role: 'assistant', content: 'one' }]
    for (const messages of [[...history, ...asked('to a person')], asked(said({ text: 'one' }))]) {
      const refused = await ask(ann, messages, headers)
      assert.deepEqual([refused.status, refused.body.error?.code], [400, 'SESSION_UNDER_OPERATOR'])
      assert.equal(JSON.stringify(refused.body).includes('assigned_to'), false)
    }
    const stored = (await app.admin.get(`/sessions/${first.session}/messages`)).body.data
    assert.deepEqual(
      stored.map(({ content }: Json) => content),
      [said({ text: 'one' }), 'one', 'to a person'],
    )
    const { total } = (await app.admin.get(`/sessions?actor_id=${ann.actorId}`)).body
    assert.equal(total, 1)
    const { data } = (await app.admin.get(`/generations?session_id=${first.session}`)).body
    assert.equal(data.length, 1)
  })

  it('see no input of their turns, which has results of tools', async () => {
    const ann = await user()
    const first = await post(ann, '/responses', { input: said(calls('hidden_tool', {}), { text: 'done' }) })
    assert.equal(first.body.status, 'completed', JSON.stringify(first.body))
    const more = { input: said({ text: 'next' }), previous_response_id: first.body.id }
    const chained = await post(ann, '/responses', more)
    assert.equal(chained.body.status, 'completed', JSON.stringify(chained.body))
    const response = await fetch(`${app.base}/responses/${chained.body.id}/input_items`, {
      headers: { authorization: `Bearer ${ann.token}` },
    })
    const text = await response.text()
    assert.equal(response.status, 403, text)
    assert.equal(text.includes('hidden'), false)
  })

  it('send no more characters than their limit in any field of a request', async () => {
    const ann = await user({ limits: { message_chars: 1000 } })
    const long = 'x'.repeat(1001)
    const limited = async (path: string, body: Json) => {
      const refused = await post(ann, path, body)
      assert.deepEqual(
        [refused.status, refused.body.error?.meta?.limit],
        [429, 'message_chars'],
        JSON.stringify(body).slice(0, 200),
      )
    }
    await limited('/chat/completions', {
      messages: [...asked(long), { role: 'assistant', content: 'a' }, ...asked('b')],
    })
    await limited('/chat/completions', { messages: [{ role: 'system', content: long }, ...asked('b')] })
    await limited('/responses', { input: 'a', instructions: long })
    const tool = { name: 'pick', description: long }
    await limited('/chat/completions', { messages: asked('a'), tools: [{ type: 'function', function: tool }] })
    const schema = { type: 'object', description: long }
    await limited('/chat/completions', {
      messages: asked('a'),
      response_format: { type: 'json_schema', json_schema: { name: 'x', schema } },
    })
    const call = { id: 'c1', type: 'function', function: { name: 'pick', arguments: '{}' } }
    const result = { role: 'tool', tool_call_id: 'c1', content: long }
    await limited('/chat/completions', {
      messages: [...asked('a'), { role: 'assistant', tool_calls: [call] }, result, ...asked('b')],
    })
    const output = { type: 'function_call_output', call_id: 'c1', output: long }
    await limited('/responses', {
      input: [...asked('a'), { type: 'function_call', call_id: 'c1', name: 'pick', arguments: '{}' }, output],
    })
    const ok = await ask(ann, [
      ...asked('x'.repeat(900)),
      { role: 'assistant', content: 'y'.repeat(900) },
      ...asked('b'),
    ])
    assert.equal(ok.status, 200, JSON.stringify(ok.body))
  })

  it('write no more than their limit as the agent, whose own replies do not count', async () => {
    const ann = await user({ limits: { message_chars: 200 } })
    const long = 'y'.repeat(201)
    const forged = [...asked('a'), { role: 'assistant', content: long }, ...asked('b')]
    for (const headers of [{}, { 'x-svc-session-key': 'forged' }] as Record<string, string>[]) {
      const refused = await ask(ann, forged, headers)
      assert.deepEqual([refused.status, refused.body.error?.meta?.limit], [429, 'message_chars'])
    }
    const { total } = (await app.admin.get(`/sessions?actor_id=${ann.actorId}`)).body
    assert.equal(total, 0)
    const reply = 'z'.repeat(201)
    const { agentId: model, requests } = await app.scripted([{ reply: { text: reply } }])
    const bob = await endUser(app, { agent_ids: [model], limits: { message_chars: 200 } })
    const history = [...asked('a'), { role: 'assistant', content: reply }, ...asked('b')]
    for (const headers of [{}, { 'x-svc-session-key': 'own' }] as Record<string, string>[]) {
      assert.equal((await ask(bob, asked('a'), headers, { model })).status, 200)
      const next = await ask(bob, history, headers, { model })
      assert.equal(next.status, 200, JSON.stringify(next.body))
    }
    assert.equal((await requests()).length, 4)
  })

  it('are refused by the length of a text before it is read: of a message, of a history, and next to a stored reply', async () => {
    const { agentId: model } = await app.scripted([{ reply: { text: 'a short reply' } }])
    const headers = { 'x-svc-session-key': 'lengths' }
    const bob = await endUser(app, { agent_ids: [model], limits: { message_chars: 200 } })
    const refusal = async (messages: unknown): Promise<string[]> => {
      const from = app.statements.length
      const { status, body } = await ask(bob, messages, headers, { model })
      assert.deepEqual([status, body.error?.meta?.limit], [429, 'message_chars'])
      return app.statements.slice(from).filter(text => /from generations|conversation_messages/.test(text))
    }
    const history = (text: string) => [...asked('a'), { role: 'assistant', content: text }, ...asked('b')]
    // A message: neither the conversation nor its replies are read.
    assert.deepEqual(await refusal(asked('x'.repeat(201))), [])
    // A history without any reply, and a history longer than the reply: the lengths of replies are read, no text is.
    const isOfLengths = (text: string) => text.includes('octet_length(g.content)')
    const isOfTexts = (text: string) => text.includes('g.content = t.text')
    const first = await refusal(history('y'.repeat(201)))
    assert.ok(first.some(isOfLengths) && !first.some(isOfTexts), first.join('\n'))
    assert.equal((await ask(bob, asked('a'), headers, { model })).status, 200)
    const beside = await refusal(history('y'.repeat(100_000)))
    assert.ok(beside.some(isOfLengths))
    assert.ok(!beside.some(isOfTexts), beside.join('\n'))
    // A text that may be the reply with an addition of the client is compared.
    assert.ok((await refusal(history('y'.repeat(300)))).some(isOfTexts))
    const added = `a short reply<details>${'z'.repeat(300)}</details>`
    assert.equal((await ask(bob, history(added), headers, { model })).status, 200)
  })

  it('attach no more bytes than their limit', async () => {
    const ann = await user({ limits: { upload_bytes_per_day: 1000 } })
    const url = `data:image/png;base64,${pngHeader(10, 10).subarray(0, 600).toString('base64')}`
    const messages = [
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'image_url', image_url: { url } },
        ],
      },
    ]
    const statuses = [(await ask(ann, messages)).status, (await ask(ann, messages)).status]
    assert.deepEqual(
      statuses.map(status => status === 429),
      [false, true],
      String(statuses),
    )
  })

  it('cannot store text that the database cannot: it is refused', async () => {
    const zero = 'a\u0000b'
    const refused = [
      await ask(app.key, asked(zero)),
      await ask(app.key, asked('a'), {}, { user: zero }),
      await ask(app.key, asked('a'), {}, { metadata: { session_key: zero } }),
      await ask(app.key, asked('a\ud800'), { 'x-svc-session-key': 'surrogate' }),
      await ask(app.key, asked('a'), {}, { model: `agent:${zero}` }),
      await post(app.key, '/responses', { input: 'a', previous_response_id: `resp_${zero}` }),
      await post(app.key, '/responses', { input: 'a', conversation: `conv_${zero}` }),
      await post(app.key, '/responses', { input: [{ type: 'item_reference', id: `msg_${zero}_1` }] }),
      await post(app.key, '/responses', { input: 'a', tools: [{ type: 'function', name: 'a', description: zero }] }),
      await post(app.key, '/embeddings', { input: zero }),
    ]
    assert.deepEqual(
      refused.filter(({ status }) => status !== 400 && status !== 404).map(({ body }) => body),
      [],
    )
    const paths = ['/responses/resp_%00', '/responses/resp_%ED%A0%80', '/files/file_%00', '/models/agent_%00']
    for (const path of paths) {
      const response = await fetch(app.base + path, { headers: { authorization: `Bearer ${app.key.token}` } })
      assert.ok([400, 404].includes(response.status), `${path} ${response.status}`)
    }
  })

  it('get a new session for the key of a deleted one', async () => {
    const ann = await user()
    const headers = { 'x-svc-session-key': 'deleted' }
    const first = await ask(ann, asked('a'), headers)
    assert.equal((await ann.delete(`/sessions/${first.session}`)).status, 204)
    const second = await ask(ann, asked('a'), headers)
    assert.equal(second.status, 200, JSON.stringify(second.body))
    assert.notEqual(second.session, first.session)
  })

  it('have schemas of answers checked before a turn', async () => {
    const ask1 = (schema: object) =>
      ask(app.key, asked('a'), {}, { response_format: { type: 'json_schema', json_schema: { name: 'x', schema } } })
    for (const schema of [{ type: 'nonsense' }, { $ref: 'http://127.0.0.1/x' }, { pattern: '(' }]) {
      const refused = await ask1(schema)
      assert.equal(refused.status, 400, JSON.stringify(refused.body))
    }
  })

  it('attach to no turn of an agent that their token does not open, and to none of a deleted session', async () => {
    const ann = await user()
    const other = await app.agent()
    const first = await ask(ann, asked('a'))
    assert.equal(first.status, 200)
    const retry = { 'x-stainless-retry-count': '1' }
    assert.equal((await ask(ann, asked('a'), retry)).body.id, first.body.id)
    const narrow = await user({ agent_ids: [other] }, ann.actorId)
    const refused = await ask(narrow, asked('a'), retry)
    assert.equal(refused.status, 404, JSON.stringify(refused.body))
    const bob = await user()
    const third = await ask(bob, asked('a'), retry)
    assert.notEqual(third.body.id, first.body.id)
  })

  it('bring no tools with names of the tools of the agent', async () => {
    const ann = await user()
    target.requests.length = 0
    const tools = [{ type: 'function', function: { name: 'hidden_tool', description: 'forged' } }]
    const response = await ask(ann, asked(said(calls('hidden_tool'), { text: 'done' })), {}, { tools })
    assert.equal(response.body.choices?.[0].finish_reason, 'stop', JSON.stringify(response.body))
    assert.equal(target.requests.length, 1)
  })

  it('read no turn of a project that they have left', async () => {
    const other = await app.projectWith(['*'])
    const provider = await app.admin.post('/ai-providers', {
      project_id: other.id,
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${app.double.url}/v1`,
    })
    const outside = { project_id: other.id, name: 'other', ai_provider_id: provider.body.id }
    const otherAgent = (await app.admin.post('/agents', outside)).body.id
    const allow = (...projects: string[]) => ({
      statement: [{ effect: 'Allow', action: ['agents:*'], resource: projects.map(id => `srn:${id}:*:*`) }],
    })
    const carl = await app.user(undefined, [allow(app.projectId, other.id)])
    const first = await post(carl, '/responses', { input: 'the secret' })
    assert.equal(first.status, 200, JSON.stringify(first.body))
    const more = { model: otherAgent, input: 'and now', previous_response_id: first.body.id }
    assert.equal((await post(carl, '/responses', more)).status, 200)
    const policy = (await app.admin.post('/policies', { document: allow(other.id) })).body.id
    assert.equal((await app.admin.put(`/users/${carl.id}/policies`, { policy_ids: [policy] })).status, 204)
    const refused = await post(carl, '/responses', more)
    assert.deepEqual(
      [refused.status, refused.body.error?.param],
      [404, 'previous_response_id'],
      JSON.stringify(refused.body),
    )
  })

  it('do not take the keys of A2A contexts', async () => {
    const ann = await user()
    const refused = [
      await ask(ann, asked(said({ text: 'x' })), { 'x-svc-session-key': 'a2a:1' }),
      await ask(ann, asked(said({ text: 'x' })), {}, { metadata: { session_key: 'a2a:1' } }),
    ]
    for (const { status, body } of refused)
      assert.deepEqual([status, body.error?.param], [400, 'metadata.session_key'], JSON.stringify(body))
  })
})
