import assert from 'node:assert/strict'
import { EVAL_ACTIONS, item, startEvalApp } from '../evaluation/support.ts'
import { eventually } from '../support/app.ts'
import { begin, finish, json, refuse, startScriptedVendor, type VendorCall } from '../support/scripted-vendor.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

const ACTIONS = [...EVAL_ACTIONS, 'conversations:*', 'memories:*', 'sessions:*']
/** Tokens that the model thinks before each answer, unless switched off. */
const THOUGHTS = 6000

/**
 * A model that refuses sampling settings, as reasoning models do, and thinks before it answers. Its answers are cut within
 * their thoughts if the request leaves no tokens for a text.
 */
function thinker({ response, body }: VendorCall, text: string, canStop: boolean): unknown {
  if (body.temperature !== undefined || body.top_p !== undefined)
    return refuse(response, 400, { message: "Unsupported parameter: 'temperature' is not supported with this model." })
  if (body.reasoning_effort === 'none' && !canStop)
    return refuse(response, 400, {
      message: "Unsupported value: 'reasoning_effort' does not support 'none' with this model.",
      param: 'reasoning_effort',
    })
  if (body.reasoning_effort !== 'none' && (body.max_tokens ?? Number.MAX_SAFE_INTEGER) <= THOUGHTS) {
    begin(response)
    const end = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm' }
    const cut = { ...end, choices: [{ index: 0, delta: {}, finish_reason: 'length' }] }
    const usage = { prompt_tokens: 10, completion_tokens: body.max_tokens, total_tokens: 10 + body.max_tokens }
    response.write(`data: ${JSON.stringify(cut)}\n\n`)
    response.end(`data: ${JSON.stringify({ ...end, choices: [], usage })}\n\ndata: [DONE]\n\n`)
    return null
  }
  return finish(response, text)
}

describe('helpers by a model that thinks first', function () {
  this.timeout(60_000)
  const vendor = forSuite(startScriptedVendor)
  const app = forSuite(() => startEvalApp({ actions: ACTIONS }))
  let provider: string
  beforeEach(async () => {
    // What a model refuses is remembered per provider.
    const made = await app.admin.post('/ai-providers', {
      project_id: app.projectId,
      name: 'thinker',
      provider: 'custom',
      default_model: 'm',
      base_url: vendor.url,
    })
    provider = made.body.id
  })

  const isTitle = ({ body }: VendorCall) => JSON.stringify(body.messages).includes('Write a title')
  const isSummary = ({ body }: VendorCall) => JSON.stringify(body.messages).includes('You keep the summary')
  const sessionOf = async (fields: object) => {
    const agent = await app.agent({ ai_provider_id: provider, model: 'm', ...fields })
    return (await app.key.post('/sessions', { agent_id: agent })).body as Json
  }
  const say = async (session: Json, message: string) => {
    await app.key.post(`/sessions/${session.id}/messages`, { message })
    return app.key.post(`/sessions/${session.id}/generate?wait=true`, {})
  }
  const read = async (session: Json): Promise<Json> => (await app.key.get(`/sessions/${session.id}`)).body

  for (const canStop of [true, false])
    it(`name sessions when the model ${canStop ? 'can leave thinking off' : 'always thinks'}`, async () => {
      vendor.script(call => thinker(call, isTitle(call) ? 'A fine title' : 'fine', isTitle(call) ? canStop : true))
      const session = await sessionOf({ auto_title: true })
      await say(session, 'hello')
      const named = await eventually(async () => {
        const found = await read(session)
        return (found.name || found.title_error) && found
      })
      assert.deepEqual([named.name, named.title_error], ['A fine title', null])
      await eventually(async () => {
        const { findings } = (await app.admin.get(`/ai-providers/${provider}/profile`)).body
        return findings.some(({ finding }: Json) => finding === 'thinks') === !canStop
      })
    })

  it('show why a session has no name', async () => {
    vendor.script(call => (isTitle(call) ? finish(call.response, ' ') : finish(call.response, 'fine')))
    const session = await sessionOf({ auto_title: true })
    await say(session, 'hello')
    const unnamed = await eventually(async () => {
      const found = await read(session)
      return found.title_error && found
    })
    assert.deepEqual([unnamed.name, unnamed.title_error.code], [null, 'AI_PROVIDER_ERROR'])
    assert.match(unnamed.title_error.message, /is empty/)
    const { reason, helper, finish_reason } = unnamed.title_error.meta
    assert.deepEqual([reason, helper, finish_reason], ['no_answer', 'title', 'stop'])
  })

  it('summarize; until then no message is dropped, and a failure is shown', async () => {
    let fails = true
    const lengths: number[] = []
    vendor.script(call => {
      if (isSummary(call))
        return fails ? refuse(call.response, 401, { message: 'no key' }) : thinker(call, 'They spoke of words.', false)
      lengths.push(call.body.messages.length)
      return finish(call.response, 'answer '.repeat(300))
    })
    const session = await sessionOf({
      context_policy: {
        max_context_tokens: 2000,
        strategy: 'summarize',
        keep_last_messages: 2,
        summary_max_tokens: 200,
      },
    })
    for (let n = 0; n < 5; n++) assert.equal((await say(session, `question ${n} ${'word '.repeat(200)}`)).status, 200)
    assert.deepEqual(lengths, [1, 3, 5, 7, 9])
    const failed = await eventually(async () => {
      const found = await read(session)
      return found.summary_error && found
    })
    assert.equal(failed.summary_error.code, 'AI_PROVIDER_ERROR')
    const conversation = async () => (await app.key.get(`/conversations/${session.conversation_id}`)).body
    assert.equal((await conversation()).summary_error.code, 'AI_PROVIDER_ERROR')
    fails = false
    await say(session, 'one more')
    await eventually(async () => (await read(session)).summary_error === null, { what: 'summary' })
    assert.equal((await conversation()).summary_error, null)
    await say(session, 'and another')
    assert.ok(lengths.at(-1)! < 9, `${lengths}`)
  })

  it('extract facts, and fail for an answer that is no list of them', async () => {
    const memory_store_id = (await app.key.post('/memory-stores', { name: 'facts' })).body.id
    let facts = '["Ada likes tea"]'
    const isExtraction = ({ body }: VendorCall) => JSON.stringify(body.messages).includes('JSON array of strings')
    vendor.script(call => thinker(call, isExtraction(call) ? facts : 'Hello Ada', !isExtraction(call)))
    const agent = await app.agent({ ai_provider_id: provider, model: 'm' })
    const rule = (
      await app.key.post('/memory-rules', { on: 'generations.completed', memory_store_id, source_agent_ids: [agent] })
    ).body
    let generation_id = ''
    const extraction = async (): Promise<Json> => {
      const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'I am Ada' })
      assert.equal(body.output?.content, 'Hello Ada', JSON.stringify(body))
      generation_id = body.id
      return eventually(async () => (await app.key.get(`/generations/${body.id}`)).body.extraction?.[rule.id])
    }
    const { candidates, created } = await extraction()
    assert.deepEqual([candidates, created], [1, 1])
    facts = 'I found nothing worth remembering.'
    const { status, body } = await app.key.post(`/memory-rules/${rule.id}/test`, { generation_id })
    assert.deepEqual([status, body.error?.code], [502, 'OUTPUT_SCHEMA_VALIDATION_FAILED'], JSON.stringify(body))
    assert.match(body.error.message, /has no list of facts/)
  })

  it('judge', async () => {
    const isJudge = ({ body }: VendorCall) => JSON.stringify(body.messages).includes('Judge')
    vendor.script(call => thinker(call, isJudge(call) ? '{"score": 0.9}' : 'Yes', !isJudge(call)))
    const agent_id = await app.agent({ ai_provider_id: provider, model: 'm' })
    const judge = {
      type: 'llm_judge',
      prompt: 'Judge {{output}}',
      pass_threshold: 0.8,
      ai_provider_id: provider,
      model: 'm',
    }
    const { id } = await app.eval({ agent_id, dataset_id: await app.dataset([item('Is it?')]), scorers: [judge] })
    const [result] = await app.results(await app.run(id))
    assert.deepEqual(result.scores, [{ scorer: 'llm_judge', score: 0.9, passed: true }])
    const usage = (await app.key.get(`/usage/events?source=eval_judge&generation_id=${result.generation_id}`)).body.data
    // The answer that was cut within its thoughts is billed too.
    assert.equal(usage.length, 2, JSON.stringify(usage))
  })

  it('omit messages without a summary after all if the model takes no context as long', async () => {
    vendor.script(call => {
      if (isSummary(call)) return refuse(call.response, 401, { message: 'no key' })
      if (call.body.messages.length > 6)
        return json(call.response, 400, { error: { message: 'too long', code: 'context_length_exceeded' } })
      return finish(call.response, 'answer '.repeat(300))
    })
    const session = await sessionOf({
      context_policy: { max_context_tokens: 2000, strategy: 'summarize', keep_last_messages: 2 },
    })
    for (let n = 0; n < 5; n++) assert.equal((await say(session, `question ${n} ${'word '.repeat(200)}`)).status, 200)
  })
})
