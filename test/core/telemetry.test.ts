import assert from 'node:assert/strict'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { type CapturedSpan, SpanCapture, type SpanTarget } from '#core/base/span-targets.ts'
import { changeSpanTargets, openTelemetry, startSpan } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER } from '#core/base/telemetry-names.ts'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import { startCollector } from '../support/collector.ts'
import { testEnvironment } from '../support/environment.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { assertBelow, startTracedApp, type TracedApp } from './telemetry-support.ts'

/** Tokens that the vendor reports for the last call: cached ones and reasoning are parts of them. */
const USED = { prompt_tokens: 50, completion_tokens: 9, cached_tokens: 30, reasoning_tokens: 4 }

const script = (...replies: object[]) => `@double ${JSON.stringify(replies)}`

describe('traces', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp())
  const target: Target = forSuite(() => startTarget())
  const receiver: Receiver = forSuite(() => startReceiver())

  const bound = (name: string) => ({ tool: { name, execute: { url: `${target.url}/secret-path-of-tool` } } })

  it('a turn of a session is one trace through web and worker, with its model calls, tool calls and requests; a webhook is linked', async () => {
    const hook = await app.key.post('/webhooks', { name: 'hook', url: receiver.url, events: ['generations.completed'] })
    assert.equal(hook.status, 201, JSON.stringify(hook.body))
    target.answer = json({ answered: 'CANARY-result' })
    const agent = await app.agent({
      name: 'Desk',
      instructions: 'CANARY-instructions',
      temperature: 0.25,
      tool_bindings: [bound('look_up')],
    })
    const web = await app.start('web')
    await app.start('worker')
    const key = app.at(web)
    const session = (await key.post('/sessions', { agent_id: agent, auto_generate: true })).body
    const sent = await key.post(`/sessions/${session.id}/messages`, {
      message: script(toolCall('look_up', { q: 'CANARY-argument' }), { text: 'CANARY-reply', usage: USED }),
    })
    assert.equal(sent.status, 201, JSON.stringify(sent.body))
    const { collector } = app
    const turn = await app.span(({ name }) => name === 'invoke_agent Desk', 'the turn')
    const delivery = await app.span(({ name }) => name === 'deliver', 'the delivery')
    const server = await app.span(
      ({ name, attributes }) =>
        name.startsWith('POST /api/v1/sessions/{session_id}/messages') &&
        attributes['http.response.status_code'] === 201,
      'the request',
    )
    assert.deepEqual(collector.problems, [])
    const generation = (await app.key.get(`/generations/${turn.attributes['muster.generation_id']}`)).body

    assert.equal(server.kind, 'server')
    assert.equal(server.parent, null)
    const { 'muster.request_id': requestId, ...ofServer } = server.attributes
    assert.match(requestId, /^\S+$/)
    assert.deepEqual(ofServer, {
      'http.request.method': 'POST',
      'http.route': '/api/v1/sessions/{session_id}/messages',
      'http.response.status_code': 201,
      'muster.operation': 'sendSessionMessage',
      'muster.surface': 'rest',
      'muster.principal_type': 'api_key',
      'muster.project_id': app.projectId,
      'session.id': session.id,
      'gen_ai.conversation.id': session.conversation_id,
    })
    assert.deepEqual([server.resource['service.name'], turn.resource['service.name']], ['muster-web', 'muster-worker'])

    assertBelow(turn, server)
    assert.equal(turn.kind, 'internal')
    const { 'muster.queue_wait_ms': waited, ...ofTurn } = turn.attributes
    assert.ok(waited >= 0)
    const shared = {
      'muster.request_id': requestId,
      'muster.project_id': app.projectId,
      'session.id': session.id,
      'gen_ai.conversation.id': session.conversation_id,
    }
    assert.deepEqual(ofTurn, {
      ...shared,
      'gen_ai.operation.name': 'invoke_agent',
      'gen_ai.provider.name': 'custom',
      'gen_ai.agent.name': 'Desk',
      'gen_ai.agent.version': '1',
      'gen_ai.request.model': 'double-1',
      'gen_ai.usage.input_tokens': generation.usage.input_tokens,
      'gen_ai.usage.output_tokens': generation.usage.output_tokens,
      'gen_ai.usage.reasoning.output_tokens': 4,
      'gen_ai.usage.cache_read.input_tokens': 30,
      'gen_ai.usage.cache_write.input_tokens': 0,
      'gen_ai.usage.cache_creation.input_tokens': 0,
      'muster.agent_id': agent,
      'muster.generation_id': generation.id,
      'muster.attempt': 1,
      'muster.outcome': 'completed',
    })

    const chats = collector.spans.filter(({ name }) => name === 'chat double-1')
    assert.equal(chats.length, 2)
    assert.equal(chats[1].attributes['gen_ai.usage.input_tokens'], USED.prompt_tokens)
    for (const [name, value] of Object.entries(ofTurn).filter(([name]) => name.startsWith('gen_ai.usage.')))
      assert.equal(
        chats.reduce((sum, { attributes }) => sum + attributes[name], 0),
        value,
        name,
      )
    for (const [index, chat] of chats.entries()) {
      assertBelow(chat, turn)
      assert.equal(chat.kind, 'client')
      const { attributes } = chat
      assert.ok(attributes['gen_ai.response.id'] && attributes['gen_ai.response.time_to_first_chunk'] >= 0)
      assert.deepEqual(
        Object.fromEntries(
          Object.entries(attributes).filter(([name]) => !/usage|response.(id|time)|server/.test(name)),
        ),
        {
          ...shared,
          'gen_ai.operation.name': 'chat',
          'gen_ai.provider.name': 'custom',
          'gen_ai.request.model': 'double-1',
          'gen_ai.request.stream': true,
          'gen_ai.request.temperature': 0.25,
          'gen_ai.output.type': 'text',
          'gen_ai.response.model': 'double-1',
          'gen_ai.response.finish_reasons': [index === 0 ? 'tool-calls' : 'stop'],
        },
      )
      assert.equal(attributes['server.address'], '127.0.0.1')
    }
    const [tool] = collector.named('execute_tool look_up')
    assertBelow(tool, turn)
    const { 'gen_ai.tool.call.id': callId, ...ofTool } = tool.attributes
    assert.ok(callId)
    assert.deepEqual(ofTool, {
      ...shared,
      'gen_ai.operation.name': 'execute_tool',
      'gen_ai.tool.name': 'look_up',
      'gen_ai.tool.type': 'extension',
      'muster.tool_kind': 'http',
      'muster.guardrail_verdict': 'execute',
    })
    const [request] = collector.named('POST')
    assertBelow(request, tool)
    assert.deepEqual(request.attributes, {
      ...shared,
      'http.request.method': 'POST',
      'http.response.status_code': 200,
      'server.address': '127.0.0.1',
      'server.port': target.port,
    })
    assert.ok(tool.started >= chats[0].started && chats[1].started >= tool.started)

    assert.equal(delivery.parent, null)
    assert.notEqual(delivery.trace, turn.trace)
    assert.deepEqual(delivery.links, [{ trace: turn.trace, id: turn.id }])
    assert.deepEqual(
      [
        delivery.kind,
        delivery.attributes['muster.event'],
        delivery.attributes['muster.attempt'],
        delivery.attributes['http.response.status_code'],
        delivery.attributes['server.port'],
      ],
      ['client', 'generations.completed', 1, 200, receiver.port],
    )
    assert.ok(!collector.bodies.join().includes('CANARY'))
    assert.ok(!collector.bodies.join().includes('secret-path'))
  })
})

describe('attributes of a span', () => {
  it('keep their value when a later one is null, however often the span is noted', async () => {
    const collector = await startCollector()
    const config = loadConfig({ ...testEnvironment('postgres://unused'), OTEL_EXPORTER_OTLP_ENDPOINT: collector.url })
    const telemetry = await openTelemetry(config, { role: 'web', log: silentLog() })
    try {
      const span = startSpan(() => ({ name: 'x', attributes: { [ATTRIBUTE.session]: 'sess_1' } }), null)
      for (let n = 1; n <= 100; n++) {
        span?.set({ [ATTRIBUTE.session]: null, [MUSTER.attempt]: n })
        assert.deepEqual(span?.attributes, { [ATTRIBUTE.session]: 'sess_1', [MUSTER.attempt]: n })
      }
    } finally {
      await telemetry.close(1000)
      await collector.close()
    }
  })
})

describe('content of spans in memory', () => {
  const content = { [ATTRIBUTE.inputMessages]: 'x'.repeat(8192) }
  const chat = (project: string) => () => ({ name: 'chat x', shared: { [MUSTER.project]: project }, content: true })

  it('is at most 16 MiB of the queue and 4 MiB of a batch; further spans are exported without it', async () => {
    const collector = await startCollector()
    const config = loadConfig({
      ...testEnvironment('postgres://unused'),
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      OTEL_TRACES_SAMPLER: 'always_on',
      OTEL_CAPTURE_CONTENT: 'true',
      OTEL_BSP_MAX_QUEUE_SIZE: '5000',
      OTEL_BSP_MAX_EXPORT_BATCH_SIZE: '1000',
    })
    const telemetry = await openTelemetry(config, { role: 'web', log: silentLog() })
    for (let count = 0; count < 3000; count++) {
      const span = startSpan(chat('proj_1'), null)
      span?.setContent(content)
      span?.end()
    }
    await telemetry.close(60_000)
    await collector.close()
    assert.equal(collector.spans.length, 3000)
    const withContent = collector.spans.filter(({ attributes }) => attributes[ATTRIBUTE.inputMessages])
    assert.equal(withContent.length, (20 << 20) / 8192)
    const most = Math.max(...collector.bodies.map(body => body.split('x'.repeat(8192)).length - 1))
    assert.equal(most, (4 << 20) / 8192)
  }).timeout(90_000)

  it('is at most 1 MiB of a unit of work for the receiver of its project', () => {
    const options = { config: { OTEL_CAPTURE_USER: false }, log: silentLog() }
    const target = { sample_ratio: 1, content: 'full' as const, kinds: new Set<never>() }
    changeSpanTargets(targets => targets.set('proj_1', target), options)
    try {
      const span = startSpan(chat('proj_1'), null)
      assert.ok(span?.capture)
      let taken = 0
      for (; span.takesContent; taken++) span.setContent({ [`part ${taken}`]: 'x'.repeat(8192) })
      span.setContent({ refused: 'x' })
      assert.equal(taken, (1 << 20) / 8192)
      assert.deepEqual(Object.keys(span.captured().content ?? {}).length, taken)
    } finally {
      changeSpanTargets(targets => targets.delete('proj_1'), options)
    }
  })

  describe('of a unit of work for the receiver of its project', () => {
    const spanOf = (spanId: string, parentSpanId: string | null, name = 'node x') => ({
      spanId,
      captured: (): CapturedSpan => ({
        traceId: 't',
        spanId,
        parentSpanId,
        name,
        kind: 1,
        startedAt: 1,
        endedAt: 2,
        isFailed: false,
        attributes: {},
        links: [],
        events: [],
        content: null,
      }),
    })
    const captureOf = (kinds: SpanTarget['kinds'] = new Set()) =>
      new SpanCapture('proj_1', { sample_ratio: 1, content: 'none', kinds })
    const parents = (spans: readonly CapturedSpan[]) =>
      Object.fromEntries(spans.map(({ spanId, parentSpanId }) => [spanId, parentSpanId]))

    it('has one root, which is kept beyond 1,000 spans and is the parent of children of dropped ones', () => {
      const capture = captureOf()
      const root = spanOf('root', 'outside', 'invoke_agent x')
      capture.start(root)
      const others = [...Array(1000).keys()].map(n => spanOf(`s${n}`, 'root'))
      for (const span of others) {
        capture.start(span)
        capture.end(span)
      }
      const dropped = spanOf('dropped', 'root')
      const child = spanOf('child', 'dropped')
      capture.start(dropped)
      capture.start(child)
      capture.end(dropped)
      capture.end(root)
      const note = { attributes: { 'muster.outcome': 'completed' } }
      const spans = capture.spans(note)
      assert.equal(spans.length, 1002)
      const { root: ofRoot, child: ofChild } = parents(spans)
      assert.deepEqual([ofRoot, ofChild], ['outside', 'root'])
      const noted = spans.filter(({ attributes }) => 'muster.outcome' in attributes)
      assert.deepEqual(parents(noted), { root: 'outside' })
      assert.deepEqual(parents(capture.spans(note, true)), { root: 'outside' })
    })

    it('has the nearest sent parent of each span', () => {
      const capture = captureOf(new Set(['node']))
      for (const span of [
        spanOf('root', 'outside', 'run x'),
        spanOf('a', 'root'),
        spanOf('b', 'a', 'chat x'),
        spanOf('c', 'b'),
        spanOf('d', 'root', 'chat x'),
        spanOf('e', 'd'),
      ])
        capture.start(span)
      assert.deepEqual(parents(capture.spans()), { a: 'outside', c: 'a', e: 'outside' })
      assert.deepEqual(capture.spans({}, true), [])
    })
  })
})
