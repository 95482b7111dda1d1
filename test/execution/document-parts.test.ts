import assert from 'node:assert/strict'
import { newId } from '../../src/core/api/ids.ts'
import { client } from '../local/double/client.ts'
import type { Client } from '../support/app.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'

describe('documents in messages', () => {
  let app: AgentApp
  let double: ReturnType<typeof client>

  before(async () => {
    app = await startAgentApp()
    double = client(app.double)
  })
  after(() => app?.close())

  const document = async (content: string, fields: object = {}, key: Client = app.key) => {
    const made = await key.post('/documents', { content, ...fields })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body.id as string
  }
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
    // What is kept of the turn is what the model was given.
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
    const [missing, other] = [await generate([named(newId('doc'))]), await generate([named(foreign)])]
    assert.deepEqual(Object.keys(other.body.error), Object.keys(missing.body.error))
    assert.equal(other.body.error.message, missing.body.error.message)
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
})
