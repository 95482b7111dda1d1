import assert from 'node:assert/strict'
import { parseExactJson } from '#core/base/exact-json.ts'
import { summaryOf } from '#core/db/statement-spans.ts'
import { inputContent, outputContent } from '#execution/providers/call-content.ts'
import type { ModelAnswer, ModelRequest } from '#execution/providers/model-messages.ts'
import { accepted, shared } from '../execution/share-support.ts'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import type { ReceivedSpan } from '../support/collector.ts'
import type { TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startTracedApp, type TracedApp } from './telemetry-support.ts'

const INPUT = 'gen_ai.input.messages'
const OUTPUT = 'gen_ai.output.messages'
const PASSWORD = 'vendor-key-of-the-test-7311'

describe('content, end users and statements in spans', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp({ together: true }))
  const target: Target = forSuite(() => startTarget())
  let key: TracedApp['key']
  let web: TestProcess

  before(async () => {
    target.answer = json({ answered: 'by the tool' })
    const captured = { OTEL_CAPTURE_CONTENT: 'true', OTEL_CAPTURE_USER: 'true', OTEL_DB_SPANS: 'true' }
    web = await app.start('web', captured)
    key = app.at(web)
    await app.start('worker', captured)
  })
  beforeEach(() => {
    app.collector.spans.length = 0
  })
  afterEach(() => assert.deepEqual(app.collector.problems, []))

  const named = (name: string) => app.span(span => span.name === name, name)
  const chatsOf = (turn: ReceivedSpan) =>
    app.collector.spans.filter(({ name, trace }) => name.startsWith('chat ') && trace === turn.trace)
  const ask = async (agent: string, prompt: string) => {
    const reply = await key.post(`/agents/${agent}/generate?wait=true`, { prompt })
    assert.equal(reply.body.status, 'completed', JSON.stringify(reply.body))
  }

  it('a process that captures content says so when it starts', () => {
    assert.ok(web.output.some(line => line.includes('OTEL_CAPTURE_CONTENT is set')))
  })

  it('model calls of a turn have their messages in the form of the conventions', async () => {
    const bound = { tool: { name: 'look_up', execute: { url: target.url } } }
    const agent = await app.agent({ name: 'open', instructions: 'Be brief.', tool_bindings: [bound] })
    const prompt = scriptOf(toolCall('look_up', { q: 'x' }), { text: 'found' })
    await ask(agent, prompt)
    const turn = await named('invoke_agent open')
    const chats = chatsOf(turn).map(({ attributes }) => attributes)
    const [call] = JSON.parse(chats[0][OUTPUT])
    const { id } = call.parts[0]
    assert.deepEqual(call, {
      role: 'assistant',
      parts: [{ type: 'tool_call', id, name: 'look_up', arguments: { q: 'x' } }],
      finish_reason: 'tool_call',
    })
    assert.deepEqual(JSON.parse(chats[1][INPUT]), [
      { role: 'system', parts: [{ type: 'text', content: 'Be brief.' }] },
      { role: 'user', parts: [{ type: 'text', content: prompt }] },
      { role: 'assistant', parts: call.parts },
      { role: 'tool', parts: [{ type: 'tool_call_response', id, response: { answered: 'by the tool' } }] },
    ])
    assert.deepEqual(JSON.parse(chats[1][OUTPUT]), [
      { role: 'assistant', parts: [{ type: 'text', content: 'found' }], finish_reason: 'stop' },
    ])
    // Also shows that the check of canaries would find content.
    assert.ok(app.collector.leaks.some(line => line.startsWith(`chat double-1: ${INPUT}: `)))
    const others = app.collector.spans.filter(({ name }) => !name.startsWith('chat '))
    assert.ok(!JSON.stringify(others.map(each => each.attributes)).includes('Be brief'))
  })

  it('content is valid JSON of at most 8 KB, with the credential of the vendor masked', async () => {
    const secret = await createdBy(app.admin, '/secrets', {
      project_id: app.projectId,
      name: 'vendor',
      value: PASSWORD,
    })
    const provider = await createdBy(app.admin, '/ai-providers', {
      project_id: app.projectId,
      name: 'guarded',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${app.double.url}/v1`,
      secret_id: secret.id,
    })
    const agent = await app.agent({ name: 'long', ai_provider_id: provider.id, instructions: `It is ${PASSWORD}.` })
    await ask(agent, `${scriptOf({ text: 'é'.repeat(20_000) })}`)
    const [{ attributes }] = chatsOf(await named('invoke_agent long'))
    for (const name of [INPUT, OUTPUT]) {
      assert.ok(Buffer.byteLength(attributes[name]) <= 8192, name)
      assert.equal(JSON.parse(attributes[name]).at(-1).parts[0].type, 'text', name)
    }
    assert.match(attributes[INPUT], /It is \*\*\*/)
    assert.ok(!app.collector.bodies.join().includes(PASSWORD))
  })

  it('content that is not kept is in no span', async () => {
    const agent = await app.agent({ name: 'closed', trace_content_mode: 'none' })
    await ask(agent, 'UNKEPT')
    const turn = await named('invoke_agent closed')
    assert.equal(chatsOf(turn).length, 1)
    assert.ok(!app.collector.bodies.join().includes('UNKEPT'))
  })

  it('instructions of a shared agent whose content is not kept are in no span', async () => {
    const agent = await app.agent({ name: 'lent', trace_content_mode: 'none', instructions: 'UNKEPT-INSTRUCTIONS' })
    const grantee = await app.projectWith(['agents:*', 'shares:*'])
    const share = await shared(app.admin, `srn:${app.projectId}:agent:${agent}`, {
      project_id: app.projectId,
      grantee: grantee.id,
    })
    await accepted(grantee.key, share.id)
    const reply = await app.at(web, grantee.key).post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    assert.equal(reply.body.status, 'completed', JSON.stringify(reply.body))
    await named('invoke_agent lent')
    assert.ok(!app.collector.bodies.join().includes('UNKEPT-INSTRUCTIONS'))
  })

  it('each span of a turn of an end user, and of a request by their token, has their external ID', async () => {
    const actor = await createdBy(key, '/actors', { name: 'Ada', external_id: 'customer-17' })
    const agent = await app.agent({ name: 'served' })
    const session = await createdBy(key, '/sessions', { agent_id: agent, actor_id: actor.id, auto_generate: true })
    assert.equal((await key.post(`/sessions/${session.id}/messages`, { message: 'x' })).status, 201)
    const turn = await named('invoke_agent served')
    const spans = [turn, ...chatsOf(turn)]
    assert.equal(spans.length, 2)
    for (const { name, attributes } of spans) assert.equal(attributes['user.id'], 'customer-17', name)
    const { token } = await createdBy(key, `/actors/${actor.id}/tokens`, { agent_ids: [agent] })
    assert.equal((await app.at(web, { token }).get(`/sessions/${session.id}`)).status, 200)
    const request = await app.span(({ attributes }) => attributes['muster.principal_type'] === 'actor', 'the request')
    assert.equal(request.attributes['user.id'], 'customer-17')
  })

  it('statements have spans with their table and rows, without text and values', async () => {
    const found = await key.get('/actors?external_id=VALUE-of-a-statement')
    assert.equal(found.status, 200)
    const server = await app.span(({ attributes }) => attributes['muster.operation'] === 'listActors', 'the request')
    const statements = app.collector.spans.filter(({ name, trace }) => name === 'db' && trace === server.trace)
    const read = statements.find(({ attributes }) => attributes['db.query.summary'] === 'with actors')
    assert.ok(read, JSON.stringify(statements.map(each => each.attributes)))
    assert.equal(read.kind, 'client')
    assert.equal(read.attributes['db.system.name'], 'postgresql')
    assert.equal(read.attributes['db.response.returned_rows'], 0)
    assert.ok(!app.collector.bodies.join().includes('VALUE-of-a-statement'))
  })
})

describe('messages of a model call as content', () => {
  const results = (...all: unknown[]) =>
    all.map((result, n) => ({
      type: 'tool_result',
      tool_call_id: `call_${n}`,
      tool_name: 'look_up',
      result,
      error: null,
    }))
  const contentOf = (content: unknown, secrets: readonly string[] = []) => {
    const request = { system: 'Be brief.', messages: [{ role: 'tool', content }] } as unknown as ModelRequest
    const text = inputContent(request, secrets)[INPUT]
    assert.ok(Buffer.byteLength(text) <= 8192, String(Buffer.byteLength(text)))
    return text
  }

  it('has values as their JSON is', () => {
    const value = parseExactJson(
      '{"a": [1, 1.10, true, null, [], {}, "\\u0007\\"é"], "b": {"c": 2512292042121000001}, "": ""}',
    )
    const [, { parts }] = JSON.parse(contentOf(results({ ...value, left_out: undefined }, null, 'text')))
    assert.deepEqual(
      parts.map((part: { response: unknown }) => JSON.stringify(part.response)),
      [JSON.parse(JSON.stringify(value)), null, 'text'].map(each => JSON.stringify(each)),
    )
  })

  it('reads no more of large values than it may keep', () => {
    let reads = 0
    const item = {
      get x() {
        reads++
        return 'y'.repeat(20)
      },
    }
    const text = contentOf(results(...Array.from({ length: 30 }, () => Array(50_000).fill(item))))
    assert.ok(JSON.parse(text)[1].parts.length >= 1)
    assert.ok(reads < 10_000, String(reads))
  })

  it('has the newest parts of a newest message of which not all fit', () => {
    const [, { parts }] = JSON.parse(contentOf(results(...Array.from({ length: 30 }, () => '" '.repeat(10_000)))))
    assert.ok(parts.length >= 1 && parts.length < 30, String(parts.length))
    assert.equal(parts.at(-1).id, 'call_29')
  })

  it('has IDs and names masked and cut', () => {
    const call = { id: `${PASSWORD} ${'i '.repeat(10_000)}`, tool_name: `of ${PASSWORD}`, args: {} }
    const answer = { reasoning: null, text: 'x', tool_calls: [call], finish_reason: 'tool-calls' }
    const [{ parts }] = JSON.parse(outputContent(answer as unknown as ModelAnswer, [PASSWORD])[OUTPUT])
    assert.match(parts[1].id, /^\*\*\* [i ]{100,124}$/)
    assert.equal(parts[1].name, 'of ***')
  })
})

describe('summaries of statements', () => {
  for (const [text, summary] of [
    ['select extract(epoch from now()) from pgboss.queue2', 'select queue2'],
    ['update pgboss.job set a = 1', 'update job'],
    ['INSERT INTO "Public"."Jobs_v2" (a) values (1)', 'insert jobs_v2'],
    ['select a is distinct from null from agents', 'select agents'],
    ['select 1', 'select'],
  ])
    it(`name keyword and table: ${text}`, () => assert.equal(summaryOf(text), summary))
})
