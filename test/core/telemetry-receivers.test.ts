import assert from 'node:assert/strict'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import { createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startTracedApp, type TracedApp } from './telemetry-support.ts'

type Attributes = Record<string, any>
type Sent = { name: string; attributes: Attributes; raw: any }

/**
 * What receivers make of a span, as facts of their sources; nothing is sent to them.
 *
 * Langfuse: `packages/shared/src/server/otel/OtelIngestionProcessor.ts` and `ObservationTypeMapper.ts` of langfuse/langfuse at
 * 62751446 of 2026-08-22, read on 2026-11-30. Usage and model of spans with the operation `invoke_agent` are left out, because their
 * calls have them; cost without an attribute is computed from model and usage.
 */
const LANGFUSE_TYPES: Record<string, string> = {
  chat: 'GENERATION',
  embeddings: 'EMBEDDING',
  invoke_agent: 'AGENT',
  execute_tool: 'TOOL',
}
function langfuse({ attributes: of }: Sent) {
  const isAgent = of['gen_ai.operation.name'] === 'invoke_agent'
  const cached = of['gen_ai.usage.cache_read.input_tokens'] ?? 0
  const written = of['gen_ai.usage.cache_creation.input_tokens'] ?? 0
  const reasoning = of['gen_ai.usage.reasoning.output_tokens'] ?? 0
  return {
    type: LANGFUSE_TYPES[of['gen_ai.operation.name']] ?? 'SPAN',
    userId: of['langfuse.user.id'] ?? of['user.id'],
    sessionId: of['langfuse.session.id'] ?? of['session.id'] ?? of['gen_ai.conversation.id'],
    model: isAgent ? undefined : (of['gen_ai.response.model'] ?? of['gen_ai.request.model']),
    usage:
      isAgent || of['gen_ai.usage.input_tokens'] === undefined
        ? undefined
        : {
            input: Math.max(of['gen_ai.usage.input_tokens'] - cached - written, 0),
            input_cached_tokens: cached,
            output: Math.max(of['gen_ai.usage.output_tokens'] - reasoning, 0),
            output_reasoning_tokens: reasoning,
          },
    input: of['gen_ai.input.messages'],
    output: of['gen_ai.output.messages'],
  }
}

/**
 * Phoenix: `src/phoenix/trace/gen_ai/conversion.py`, `src/phoenix/trace/otel.py` and `src/phoenix/db/insertion/span.py` of
 * Arize-ai/phoenix at 9478f954 of 2026-08-21, read on 2026-11-30. It takes protobuf only, so a collector is between, which changes
 * no attribute.
 */
const PHOENIX_KINDS: Record<string, string> = {
  chat: 'LLM',
  embeddings: 'EMBEDDING',
  execute_tool: 'TOOL',
  retrieval: 'RETRIEVER',
  invoke_agent: 'AGENT',
}
const phoenix = ({ attributes: of }: Sent) => ({
  kind: PHOENIX_KINDS[of['gen_ai.operation.name']],
  session: of['session.id'] ?? of['gen_ai.conversation.id'],
  user: of['user.id'],
  model: of['gen_ai.request.model'],
  prompt: of['gen_ai.usage.input_tokens'],
  completion: of['gen_ai.usage.output_tokens'],
  cacheRead: of['gen_ai.usage.cache_read.input_tokens'],
  tool: of['gen_ai.tool.name'],
  input: of['gen_ai.input.messages'],
  output: of['gen_ai.output.messages'],
})

const plain = (value: any): any =>
  value.arrayValue ? value.arrayValue.values.map(plain) : Object.values(value as object)[0]

const spansOf = (bodies: readonly string[]): Sent[] =>
  bodies
    .flatMap(body => JSON.parse(body).resourceSpans ?? [])
    .flatMap(({ scopeSpans }: any) => scopeSpans.flatMap(({ spans }: any) => spans))
    .map(raw => ({
      name: raw.name,
      raw,
      attributes: Object.fromEntries(raw.attributes.map(({ key, value }: any) => [key, plain(value)])),
    }))

const USED = { prompt_tokens: 50, completion_tokens: 9, cached_tokens: 30, reasoning_tokens: 4 }

describe('receivers of spans', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp())
  const target: Target = forSuite(() => startTarget())
  let session: any
  let turn: Sent
  let call: Sent
  let tool: Sent

  before(async () => {
    target.answer = json({ answered: true })
    const captured = { OTEL_CAPTURE_CONTENT: 'true', OTEL_CAPTURE_USER: 'true' }
    const key = app.at(await app.start('web', captured))
    await app.start('worker', captured)
    const price = { provider: 'custom', model: 'double-1', unit: 'token', effective_from: '2020-01-01' }
    const prices = ['input_tokens', 'output_tokens'].map(component => ({ ...price, component, unit_price: 0.01 }))
    assert.equal((await app.admin.put(`/projects/${app.projectId}/prices`, { prices })).status, 200)
    const bound = { tool: { name: 'look_up', execute: { url: target.url } } }
    const agent_id = await app.agent({ name: 'Desk', tool_bindings: [bound] })
    const actor = await createdBy(key, '/actors', { name: 'Ada', external_id: 'customer-17' })
    session = await createdBy(key, '/sessions', { agent_id, actor_id: actor.id, auto_generate: true })
    const message = scriptOf(toolCall('look_up', { q: 'x' }), { text: 'found', usage: USED })
    assert.equal((await key.post(`/sessions/${session.id}/messages`, { message })).status, 201)
    await app.span(({ name }) => name === 'invoke_agent Desk', 'the turn')
    const sent = spansOf(app.collector.bodies)
    const named = (name: string) => sent.filter(span => span.name === name).at(-1) as Sent
    turn = named('invoke_agent Desk')
    call = named('chat double-1')
    tool = named('execute_tool look_up')
  })

  it('Langfuse reads session, user, model, tokens and messages; it prices calls by model and tokens', () => {
    for (const span of [turn, call, tool]) {
      const { sessionId, userId } = langfuse(span)
      assert.deepEqual([sessionId, userId], [session.id, 'customer-17'], span.name)
    }
    assert.deepEqual(
      [turn, call, tool].map(span => langfuse(span).type),
      ['AGENT', 'GENERATION', 'TOOL'],
    )
    const { model, usage, input, output } = langfuse(call)
    assert.equal(model, 'double-1')
    assert.deepEqual(usage, { input: 20, input_cached_tokens: 30, output: 5, output_reasoning_tokens: 4 })
    assert.equal(JSON.parse(input).at(-1).role, 'tool')
    assert.equal(JSON.parse(output)[0].parts[0].content, 'found')
    assert.deepEqual([langfuse(turn).usage, langfuse(tool).usage], [undefined, undefined])
    // Metadata of the agent there: the cost by the prices of the project.
    assert.ok(turn.attributes['muster.cost_usd'] > 0)
  })

  it('Phoenix reads kinds, session, user, model, tokens, tool and messages', () => {
    assert.deepEqual(
      [turn, call, tool].map(span => phoenix(span).kind),
      ['AGENT', 'LLM', 'TOOL'],
    )
    for (const span of [turn, call, tool]) {
      const { session: id, user } = phoenix(span)
      assert.deepEqual([id, user], [session.id, 'customer-17'], span.name)
    }
    const { model, prompt, completion, cacheRead, output } = phoenix(call)
    assert.deepEqual([model, Number(prompt), Number(completion), Number(cacheRead)], ['double-1', 50, 9, 30])
    assert.equal(JSON.parse(output)[0].role, 'assistant')
    assert.equal(phoenix(tool).tool, 'look_up')
  })

  /**
   * Tempo, Jaeger and collectors take OTLP: "JSON Protobuf Encoding" of docs/specification.md of open-telemetry/opentelemetry-proto at
   * ac2c4b5d of 2026-08-18, read on 2026-11-30: IDs in hexadecimal, enums as integers, 64-bit integers as decimal text.
   */
  it('Tempo and Jaeger can decode every field', () => {
    for (const { name, raw } of spansOf(app.collector.bodies)) {
      assert.match(raw.traceId, /^[0-9a-f]{32}$/, name)
      for (const id of [raw.spanId, raw.parentSpanId ?? raw.spanId]) assert.match(id, /^[0-9a-f]{16}$/, name)
      assert.ok(Number.isInteger(raw.kind) && Number.isInteger(raw.status.code), name)
      for (const time of [raw.startTimeUnixNano, raw.endTimeUnixNano]) assert.match(time, /^\d{19}$/, name)
      assert.ok(BigInt(raw.endTimeUnixNano) >= BigInt(raw.startTimeUnixNano), name)
      assert.ok(!raw.links?.some(({ traceId }: any) => !/^[0-9a-f]{32}$/.test(traceId)), name)
    }
    assert.deepEqual(app.collector.problems, [])
  })
})
