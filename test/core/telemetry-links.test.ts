import assert from 'node:assert/strict'
import { startMcpServer } from '../execution/mcp-target.ts'
import { eventually } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import type { TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { assertBelow, startTracedApp, type TracedApp } from './telemetry-support.ts'

describe('spans of calls and of their causes', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp())
  const mcp = forSuite(() => startMcpServer())
  const vendor = forSuite(() => startEmbeddingServer(64))
  let key: TracedApp['key']

  const embedded = () => ({
    EMBEDDING_PROVIDER: 'openai',
    EMBEDDING_MODEL: 'embedder',
    EMBEDDING_DIMENSIONS: '64',
    EMBEDDING_API_KEY: 'key of the vendor',
    EMBEDDING_BASE_URL: vendor.url,
  })
  let worker: TestProcess

  before(async () => {
    key = app.at(await app.start('web', embedded()))
    worker = await app.start('worker', embedded())
  })
  beforeEach(() => {
    app.collector.spans.length = 0
  })
  afterEach(() => assert.deepEqual(app.collector.problems, []))

  const named = (name: string) => app.span(span => span.name === name, name)

  it('a turn that answers several messages is below the first request and links the others', async () => {
    const session = await createdBy(key, '/sessions', {
      agent_id: await app.agent({ name: 'patient' }),
      auto_generate: true,
      message_delay_seconds: 1,
    })
    // However long the requests take, no turn starts between them.
    await worker.kill('SIGTERM')
    const send = (message: string) =>
      key.post(`/sessions/${session.id}/messages`, { message }).then(({ headers }) => headers.get('x-request-id'))
    const ids = [await send('one'), await send('two'), await send('three')]
    worker = await app.start('worker', embedded())
    const turn = await named('invoke_agent patient')
    const requests = ids.map(
      id =>
        app.collector.spans.find(
          ({ kind, attributes }) => kind === 'server' && attributes['muster.request_id'] === id,
        )!,
    )
    assertBelow(turn, requests[0])
    assert.deepEqual(
      turn.links,
      requests.slice(1).map(({ trace, id }) => ({ trace, id })),
    )
    assert.equal(turn.attributes['muster.request_id'], ids[0])
  })

  it('spans of a request that names itself have its ID, and no other process guesses one', async () => {
    const id = '11111111-2222-4333-8444-555555555555'
    const agent = await app.agent({ name: 'named' })
    await key.post(`/agents/${agent}/generate?wait=false`, { prompt: 'x' }, { 'x-request-id': id })
    const turn = await named('invoke_agent named')
    const server = await app.span(({ attributes }) => attributes['muster.request_id'] === id, 'the request')
    assertBelow(turn, server)
    assert.notEqual(server.trace, id.replaceAll('-', ''))
    assert.equal(turn.attributes['muster.request_id'], undefined)
  })

  it('messages to an MCP server have spans with the method, below the tool, and failures their code', async () => {
    const tool = { name: 'weather', type: 'mcp', mcp: { url: `${mcp.url}/stateful` } }
    const agent = await app.agent({ name: 'caller', tool_bindings: [{ tool }] })
    await key.post(`/agents/${agent}/generate?wait=true`, {
      prompt: scriptOf(
        toolCall('weather_echo', { city: 'CANARY', unit: 'C' }),
        toolCall('weather_fail'),
        toolCall('weather_throw'),
        { text: 'done' },
      ),
    })
    await named('invoke_agent caller')
    const call = await named('tools/call echo')
    const outer = await named('execute_tool weather_echo')
    assertBelow(call, outer)
    assert.equal(call.kind, 'client')
    const { 'muster.project_id': _project, 'muster.request_id': _request, ...attributes } = call.attributes
    assert.deepEqual(attributes, {
      'mcp.method.name': 'tools/call',
      'mcp.protocol.version': '2025-06-18',
      'jsonrpc.request.id': '2',
      'gen_ai.tool.name': 'echo',
      'http.response.status_code': 200,
      'server.address': '127.0.0.1',
      'server.port': mcp.port,
    })
    const below = app.collector.spans.filter(({ parent }) => parent === outer.id)
    assert.deepEqual(
      below.map(({ name }) => name).filter(name => name !== 'DELETE'),
      ['initialize', 'notifications/initialized', 'tools/call echo'],
    )
    assert.equal((await named('tools/call fail')).attributes['error.type'], 'tool_error')
    const thrown = await named('tools/call throw')
    assert.deepEqual([thrown.failed, thrown.attributes['rpc.response.status_code']], [true, '-32050'])
    assert.ok(await named('tools/list'))
    assert.ok(!app.collector.bodies.join().includes('CANARY'))
  })

  it('embeddings have the tokens that the vendor reported for their texts', async () => {
    const reply = await key.post('/embeddings', { inputs: ['a', 'b', 'c'] })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    const { attributes } = await named('embeddings embedder')
    assert.deepEqual(
      [
        'gen_ai.usage.input_tokens',
        'gen_ai.provider.name',
        'gen_ai.embeddings.dimension.count',
        'muster.batch_size',
      ].map(name => attributes[name]),
      [30, 'openai', 64, 3],
    )
    // Callers that share a call share its tokens.
    app.collector.spans.length = 0
    await Promise.all(['one', 'two', 'three'].map(input => key.post('/embeddings', { input: `${input} of several` })))
    const shares = await eventually(() => {
      const found = app.collector.named('embeddings embedder')
      return found.length === 3 ? found.map(span => span.attributes['gen_ai.usage.input_tokens'] as number) : null
    })
    assert.equal(
      shares.reduce((sum, each) => sum + each, 0),
      30,
    )
  })
})
