import assert from 'node:assert/strict'
import { startRunApp } from '../automation/fixtures.ts'
import { client as doubleOf } from '../local/double/client.ts'
import { forSuite } from '../support/suite.ts'
import { startTarget } from './tool-target.ts'

type Json = Record<string, any>

/** Tools with schemas as servers list them: other drafts, other regular expressions, keywords that are null. */
const SCHEMAS: Record<string, Json> = {
  draft4: {
    $schema: 'http://json-schema.org/draft-04/schema#',
    type: 'object',
    properties: { n: { type: 'number', minimum: 0, exclusiveMinimum: true } },
  },
  ignore_case: { type: 'object', properties: { code: { type: 'string', pattern: '(?i)^[a-z]+$' } } },
  escaped: { type: 'object', properties: { path: { type: 'string', pattern: '^\\/[\\w\\-\\/]+$' } } },
  null_keyword: { type: 'object', properties: { n: { type: 'number', minimum: null, description: null } } },
  'a.b': { type: 'object' },
  a_b: { type: 'object' },
  'a b': { type: 'object' },
}

describe('tools of MCP servers as their makers wrote them', () => {
  const app = forSuite(() => startRunApp({ workers: ['generation'] }))
  let toolId: string
  const called: { name: string; arguments: Json }[] = []
  let failure: Json | null = null
  before(async () => {
    app.target.answer = ({ body }, response) => {
      const { id, method, params } = JSON.parse(body || '{}')
      if (id === undefined) return response.writeHead(202).end()
      if (method === 'tools/call') called.push(params)
      const result = {
        initialize: {
          protocolVersion: '2025-06-18',
          capabilities: { tools: {} },
          serverInfo: { name: 's', version: '1' },
        },
        'tools/list': { tools: Object.entries(SCHEMAS).map(([name, inputSchema]) => ({ name, inputSchema })) },
        'tools/call': failure ?? { content: [{ type: 'text', text: 'done' }] },
      }[method as string]
      response
        .writeHead(200, { 'content-type': 'application/json' })
        .end(JSON.stringify({ jsonrpc: '2.0', id, result }))
    }
    const tool = await app.key.post('/tools', { name: 's', type: 'mcp', mcp: { url: app.target.url } })
    assert.equal(tool.status, 201, JSON.stringify(tool.body))
    toolId = tool.body.id
  })

  const turn = async (lane: string, rules: Json[]) => {
    await doubleOf(app.double).put(lane, { rules } as never)
    const agentId = await app.agent({ model: `${lane}/m`, tool_bindings: [{ tool_id: toolId }] })
    called.length = 0
    const { status, body } = await app.key.post(`/agents/${agentId}/generate?wait=true`, { prompt: 'x' })
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.status, 'completed')
    const requests = await doubleOf(app.double).requests(lane)
    return requests.map(({ body: sent }) => sent)
  }
  const callsOnce = (tool_calls: Json[]) => [
    { when: { last_role: 'tool' }, reply: { text: 'fine' } },
    { reply: { tool_calls } },
  ]

  it('are called although their schemas cannot be compiled here: the server checks its arguments', async () => {
    const calls = Object.entries({
      draft4: { n: 1 },
      ignore_case: { code: 'AB' },
      escaped: { path: '/a' },
      null_keyword: { n: 1 },
    })
    await turn('schemas', callsOnce(calls.map(([name, args]) => ({ name: `s_${name}`, args }))))
    assert.deepEqual(
      called.map(({ name, arguments: args }) => [name, args]).sort(),
      calls.sort(([a], [b]) => (a < b ? -1 : 1)),
    )
  })

  it('have distinct names although theirs become equal', async () => {
    const [first] = await turn('names', [{ reply: { text: 'fine' } }])
    const names: string[] = first.tools.map((tool: Json) => tool.function.name)
    assert.equal(new Set(names).size, Object.keys(SCHEMAS).length)
    const alike = names.filter(name => name.startsWith('s_a_b'))
    assert.equal(alike.length, 3, names.join())
    const [again] = await turn('names', callsOnce(alike.map(name => ({ name, args: {} }))))
    assert.deepEqual(again.tools, first.tools)
    assert.deepEqual(called.map(({ name }) => name).sort(), ['a b', 'a.b', 'a_b'])
  })

  it('report to the model the structured content of their errors', async () => {
    failure = {
      isError: true,
      content: [{ type: 'text', text: 'No seats' }],
      structuredContent: { code: 'NO_SEATS', next: '2026-12-01' },
    }
    const [, second] = await turn('failure', callsOnce([{ name: 's_a_b', args: {} }]))
    failure = null
    const result = second.messages.at(-1).content
    assert.match(result, /No seats/)
    assert.match(result, /NO_SEATS/)
  })
})

describe('an anthropic provider behind a gateway', () => {
  const app = forSuite(() => startRunApp({ workers: [] }))
  const gateway = forSuite(startTarget)
  before(async () => {
    gateway.answer = ({ url }, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end(
        JSON.stringify(
          url.includes('/models')
            ? { data: [{ id: 'claude', display_name: 'Claude', type: 'model' }], has_more: false }
            : {
                id: 'msg_1',
                type: 'message',
                role: 'assistant',
                model: 'claude',
                content: [{ type: 'text', text: 'hello' }],
                stop_reason: 'end_turn',
                usage: { input_tokens: 1, output_tokens: 1 },
              },
        ),
      )
  })

  const provider = async (config: Json) => {
    const value = 'sk-gateway'
    const secret = await app.admin.post('/secrets', { project_id: app.projectId, name: JSON.stringify(config), value })
    assert.equal(secret.status, 201, JSON.stringify(secret.body))
    return app.admin.post('/ai-providers', {
      project_id: app.projectId,
      secret_id: secret.body.id,
      name: `gateway ${JSON.stringify(config)}`,
      provider: 'anthropic',
      default_model: 'claude',
      base_url: `${gateway.url}/v1`,
      config,
    })
  }

  it('sends its key as a bearer token if it says so', async () => {
    for (const [config, present, absent] of [
      [{ auth: 'bearer' }, ['authorization', 'Bearer sk-gateway'], 'x-api-key'],
      [{}, ['x-api-key', 'sk-gateway'], 'authorization'],
    ] as const) {
      const { status, body } = await provider(config)
      assert.equal(status, 201, JSON.stringify(body))
      gateway.requests.length = 0
      const answer = await app.admin.post('/chat/completions', {
        ai_provider_id: body.id,
        model: 'claude',
        messages: [{ role: 'user', content: 'x' }],
      })
      assert.equal(answer.status, 200, JSON.stringify(answer.body))
      const models = await app.admin.get(`/ai-providers/${body.id}/models`)
      assert.equal(models.status, 200, JSON.stringify(models.body))
      assert.ok(gateway.requests.length >= 2)
      for (const { headers } of gateway.requests) {
        assert.equal(headers[present[0]], present[1])
        assert.equal(headers[absent], undefined)
      }
    }
  })

  it('refuses other values, and the setting of other types', async () => {
    const wrong = await provider({ auth: 'basic' })
    assert.equal(wrong.status, 400)
    assert.equal(wrong.body.error.meta.problems[0].path, 'config.auth')
    const other = await app.admin.post('/ai-providers', {
      project_id: app.projectId,
      name: 'openai',
      provider: 'openai',
      default_model: 'm',
      config: { auth: 'bearer' },
    })
    assert.equal(other.status, 400)
    assert.equal(other.body.error.meta.problems[0].path, 'config.auth')
  })
})
