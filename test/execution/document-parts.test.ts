import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { json, made, startTarget } from './tool-target.ts'

describe('documents in messages', () => {
  const app = forSuite(() => startAgentApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const double = forSuite(() => client(app.double))

  const document = async (content: string, fields: object = {}, key: Client = app.key) =>
    (await createdBy(key, '/documents', { content, ...fields })).id as string
  const generate = (content: unknown, agent = app.agentId, key: Client = app.key, role = 'user') =>
    key.post(`/agents/${agent}/generate?wait=true`, { messages: [{ role, content }], prompt: 'Go on' })
  const named = (document_id: string) => ({ type: 'document', document_id })
  const text = (value: string) => ({ type: 'text', text: value })
  const lane = async (name: string, rules: object[] = []) => {
    await double.put(name, { rules } as never)
    return app.agent({ model: `${name}/m` })
  }

  it('reach the model as their text, as parts and as whole messages of either side', async () => {
    const agent = await lane('documents')
    const minutes = await document('We ship on Friday.')
    const { status, body } = await generate([text('Read this:'), named(minutes), named(minutes)], agent)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal((await generate(named(minutes), agent)).status, 200)
    assert.equal((await generate(named(minutes), agent, app.key, 'assistant')).status, 200)
    const requests = await double.requests('documents')
    const first = requests.map(request => request.body.messages[0])
    assert.deepEqual(first[0].content, [text('Read this:'), text('We ship on Friday.'), text('We ship on Friday.')])
    assert.deepEqual(
      first.slice(1).map(({ role, content }) => [role, content]),
      [
        ['user', 'We ship on Friday.'],
        ['assistant', 'We ship on Friday.'],
      ],
    )
    // The stored turn has the input of the model.
    const { input } = (await app.key.get(`/generations/${body.id}/transcript`)).body
    assert.deepEqual(input[0].content, first[0].content)
  })

  it('have the text of the request, however late or often the turn runs', async () => {
    const agent = await lane('late', [
      { replies: [{ error: { status: 400 }, gate: 'documents-late' }, { text: 'seen' }] },
    ])
    const changed = await document('as it was')
    const made = await app.key.post(`/agents/${agent}/generate`, {
      messages: [{ role: 'user', content: [text('Read this:'), named(changed)] }],
    })
    await app.key.patch(`/documents/${changed}`, { content: 'as it is now' })
    await double.read('POST', '/control/gates/documents-late/open')
    const failed = await app.key.get(`/generations/${made.body.generation_id}/stream`)
    assert.match(failed.body, /AI_PROVIDER_ERROR/)
    assert.equal((await app.key.delete(`/documents/${changed}`)).status, 204)
    const again = await app.key.post(`/generations/${made.body.generation_id}/retry?wait=true`)
    assert.deepEqual([again.status, again.body.output?.content], [200, 'seen'], JSON.stringify(again.body))
    for (const request of await double.requests('late'))
      assert.deepEqual(request.body.messages[0].content, [text('Read this:'), text('as it was')])
  })

  it('are refused when they cannot be read, and nothing is made', async () => {
    const count = async () => (await app.key.get('/generations')).body.total
    const foreign = await document('not yours', {}, (await app.project()).key)
    const withdrawn = await document('taken back')
    await app.key.post(`/documents/${withdrawn}/withdraw`)
    const empty = await document('')
    const large = await document('x'.repeat(3_000_000))
    const before = await count()
    const cases: [unknown, number, string, string?][] = [
      [[named(newId('doc'))], 404, 'RESOURCE_NOT_FOUND'],
      [named(newId('doc')), 404, 'RESOURCE_NOT_FOUND'],
      [[named(foreign)], 404, 'RESOURCE_NOT_FOUND'],
      [[named('x')], 404, 'RESOURCE_NOT_FOUND'],
      [[text('x'), named(withdrawn)], 400, 'VALIDATION_FAILED', 'messages[0].content[1].document_id'],
      [named(empty), 400, 'VALIDATION_FAILED', 'messages[0].content.document_id'],
      [[named(large), named(large)], 400, 'VALIDATION_FAILED', 'messages'],
      [[{ ...named(large), path: '/x' }], 400, 'VALIDATION_FAILED', 'messages[0].content'],
      [{ type: 'document' }, 400, 'VALIDATION_FAILED', 'messages[0].content'],
    ]
    for (const [content, status, code, path] of cases) {
      const refused = await generate(content)
      assert.deepEqual([refused.status, refused.body.error?.code], [status, code], JSON.stringify(refused.body))
      if (path) assert.ok(refused.body.error.meta.problems[0].path.startsWith(path), JSON.stringify(refused.body))
    }
    const absent = newId('doc')
    const [missing, other] = [await generate([named(absent)]), await generate([named(foreign)])]
    assert.deepEqual(Object.keys(other.body.error), Object.keys(missing.body.error))
    assert.equal(other.body.error.message, missing.body.error.message.replace(absent, foreign))
    const parts = await generate([named(large)], app.agentId, app.key, 'assistant')
    assert.deepEqual([parts.status, parts.body.error.meta.problems[0].path], [400, 'messages[0].content'])
    assert.equal(await count(), before)
    assert.equal((await generate([named(large)])).status, 200)
  })

  it('need the right to read them, by their path as by their id', async () => {
    const open = await document('open', { path: '/open/a.txt' })
    const closed = await document('closed', { path: '/closed/a.txt' })
    const allow = (action: string, resource: string) => ({
      statement: [{ effect: 'Allow', action: [action], resource: [resource] }],
    })
    const user = (await app.user(undefined, [
      allow('agents:CreateAgentGeneration', `srn:${app.projectId}:agent:*`),
      allow('documents:GetDocument', `srn:${app.projectId}:document:/open/*`),
    ])) as Client
    const ask = (content: unknown) => generate(content, app.agentId, user)
    assert.equal((await ask([named(open)])).status, 200)
    for (const content of [[named(closed)], named(closed)]) {
      const refused = await ask(content)
      assert.deepEqual([refused.status, refused.body.error.meta.action], [403, 'documents:GetDocument'])
    }
  })

  describe('together with tool results', () => {
    const target = forSuite(startTarget)
    let tool: any
    before(async () => {
      tool = await made(app.key, { name: 'order', execute: { url: `${target.url}/order` } })
    })
    beforeEach(() => {
      target.requests.length = 0
      target.answer = json({ order: { state: 'shipped', items: ['tea'] } })
    })

    const result = (fields: object = {}) => ({ type: 'tool_output', tool_id: tool.id, ...fields })
    const boundTo = async (name: string, ...ids: string[]) => {
      await double.put(name, { rules: [] })
      return app.agent({ model: `${name}/m`, tool_bindings: ids.map(tool_id => ({ tool_id })) })
    }
    const refusedAs = (reply: any, status: number, code: string) =>
      assert.deepEqual([reply.status, reply.body.error?.code], [status, code], JSON.stringify(reply.body))

    it('stand for what a tool answers, which is called once before the model', async () => {
      const agent = await boundTo('outputs', tool.id)
      const { status, body } = await generate(
        [
          text('It is'),
          result({ input: { id: 7 }, output_path: 'order.state' }),
          result({ output_path: 'order.items.0' }),
          result(),
        ],
        agent,
      )
      assert.equal(status, 200, JSON.stringify(body))
      assert.deepEqual(
        target.requests.map(request => JSON.parse(request.body || '{}')),
        [{ id: 7 }, {}, {}],
      )
      const whole = '{"order":{"state":"shipped","items":["tea"]}}'
      const [request] = await double.requests('outputs')
      assert.deepEqual(request.body.messages[0].content, ['It is', 'shipped', 'tea', whole].map(text))
      for (const role of ['user', 'assistant'])
        assert.equal((await generate(result({ output_path: 'order.state' }), agent, app.key, role)).status, 200)
      const [, second, third] = await double.requests('outputs')
      assert.deepEqual(
        [second, third].map(({ body }) => [body.messages[0].role, body.messages[0].content]),
        [
          ['user', 'shipped'],
          ['assistant', 'shipped'],
        ],
      )
      // The turn keeps the answer, and its use names it.
      const { input } = (await app.key.get(`/generations/${body.id}/transcript`)).body
      assert.deepEqual(input[0].content, request.body.messages[0].content)
      const uses = async () =>
        (await app.key.get(`/usage/events?generation_id=${body.id}&meter_type=tool_execution`)).body.data
      await eventually(async () => (await uses()).length === 3)
      assert.deepEqual((await uses())[0].source, 'direct')
    })

    it('are of a tool that the agent is bound to and the caller may call, and that can be called here', async () => {
      const other = await made(app.key, { name: 'other', execute: { url: target.url } })
      const client = await made(app.key, { name: 'theirs', type: 'client' })
      const foreign = (await app.project()).key
      const away = await made(foreign, { name: 'away', execute: { url: target.url } })
      const agent = await boundTo('bound', tool.id, client.id)
      const before = (await app.key.get('/generations')).body.total
      for (const tool_id of [other.id, away.id, newId('tool'), 'x'])
        refusedAs(await generate([text('x'), result({ tool_id })], agent), 403, 'FORBIDDEN')
      refusedAs(await generate(result({ tool_id: client.id }), agent), 422, 'TOOL_CALL_NOT_SUPPORTED')
      const allow = (action: string) => ({
        statement: [{ effect: 'Allow', action: [action], resource: [`srn:${app.projectId}:*:*`] }],
      })
      const user = (await app.user(undefined, [allow('agents:CreateAgentGeneration')])) as Client
      const denied = await generate(result(), agent, user)
      refusedAs(denied, 403, 'FORBIDDEN')
      assert.equal(denied.body.error.meta.action, 'tools:CallTool')
      const caller = (await app.user(undefined, [
        allow('agents:CreateAgentGeneration'),
        allow('tools:CallTool'),
      ])) as Client
      // All are checked before the first is called.
      refusedAs(await generate([result(), result({ tool_id: other.id })], agent), 403, 'FORBIDDEN')
      assert.equal(target.requests.length, 0)
      assert.equal((await generate(result(), agent, caller)).status, 200)
      assert.equal((await app.key.get('/generations')).body.total, before + 1)
    })

    it('are refused with the code of the call, or where their path leads nowhere, and no turn is made', async () => {
      const agent = await boundTo('failing', tool.id)
      const before = (await app.key.get('/generations')).body.total
      const refusedAt = async (content: unknown, path: string) => {
        const reply = await generate(content, agent)
        refusedAs(reply, 400, 'VALIDATION_FAILED')
        assert.equal(reply.body.error.meta.problems[0].path, path)
      }
      for (const output_path of ['order.none', 'order.items.1', 'order.__proto__'])
        await refusedAt([text('x'), result({ output_path })], 'messages[0].content[1].output_path')
      target.requests.length = 0
      await refusedAt(
        Array.from({ length: 17 }, () => result()),
        'messages',
      )
      assert.equal(target.requests.length, 0)
      target.answer = json({ no: 'order' }, 500)
      refusedAs(await generate(result(), agent), 502, 'TOOL_HTTP_ERROR')
      await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'night' })
      target.requests.length = 0
      refusedAs(await generate(result(), agent), 409, 'PROJECT_PAUSED')
      await app.admin.post(`/projects/${app.projectId}/resume`)
      assert.equal(target.requests.length, 0)
      assert.equal((await app.key.get('/generations')).body.total, before)
    })

    it('are refused by chats and sessions', async () => {
      const session = (await app.key.post('/sessions', { agent_id: app.agentId })).body
      refusedAs(await app.key.post(`/sessions/${session.id}/messages`, { message: result() }), 400, 'VALIDATION_FAILED')
      const completion = await app.key.post('/chat/completions', { messages: [{ role: 'user', content: [result()] }] })
      assert.equal(completion.status, 400)
    })
  })
})
