import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { countStatements } from '../bench/http.ts'
import { forSuite } from '../support/suite.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

/** Until the trace of a turn is in its file. */
const SETTLED_MS = 500

/** A text of about `tokens` tokens by the count of the double, a quarter of the bytes, that begins with its number. */
const numbered = (n: number, tokens: number) => `#${n} `.padEnd(tokens * 4, 'word ')
/** The texts of the messages of a request without the system text. */
const textsOf = ({ body }: Json): string[] =>
  body.messages.filter(({ role }: Json) => role !== 'system').map(({ content }: Json) => content)
/** What the double meters for a request. */
const tokensOf = ({ body }: Json): number =>
  body.messages.reduce(
    (sum: number, { content }: Json) => sum + Math.ceil(Buffer.byteLength(content ?? '') / 4) + 4,
    body.tools ? Math.ceil(Buffer.byteLength(JSON.stringify(body.tools)) / 4) : 0,
  )

describe('a context policy', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({
      actions: ['agents:CreateAgentGeneration', 'conversations:*', 'sessions:*', 'generations:*', 'tools:CallTool'],
    }),
  )

  const policy = (fields: Json = {}) => ({ max_context_tokens: 1000, strategy: 'drop', ...fields })
  const conversation = async (texts: readonly string[]) => {
    const { id } = expectStatus(await app.key.post('/conversations', {}), 201)
    for (const [n, message] of texts.entries())
      expectStatus(
        await app.key.post(`/conversations/${id}/messages`, { role: n % 2 === 0 ? 'user' : 'assistant', message }),
        201,
      )
    return id as string
  }
  const generate = async (id: string, agent_id: string) =>
    expectStatus(await app.key.post(`/conversations/${id}/generate?wait=true`, { agent_id }), 200)

  it('drops whole messages, oldest first, until a request fits', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
      instructions: 'Be kind.',
      context_policy: policy({ keep_last_messages: 2 }),
    })
    const texts = Array.from({ length: 41 }, (_, n) => numbered(n, 60))
    await generate(await conversation(texts), agentId)
    const [request] = await requests()
    const kept = textsOf(request)
    assert.deepEqual(kept, texts.slice(-kept.length))
    // As many as fit: one more would exceed the bound by the estimate of 3.4 bytes a token.
    assert.ok(kept.length > 5 && kept.length < 16, String(kept.length))
    assert.ok(tokensOf(request) <= 1000, String(tokensOf(request)))
  })

  it('keeps the last user message and the newest messages, even beyond the bound', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
      context_policy: policy({ keep_last_messages: 3 }),
    })
    const { id } = expectStatus(await app.key.post('/conversations', {}), 201)
    const say = async (role: string, message: string) =>
      expectStatus(await app.key.post(`/conversations/${id}/messages`, { role, message }), 201)
    await say('user', numbered(0, 100))
    await say('user', numbered(1, 600))
    for (const n of [2, 3, 4, 5]) await say('assistant', numbered(n, 400))
    await generate(id, agentId)
    const [request] = await requests()
    assert.deepEqual(
      textsOf(request).map(text => text.slice(0, 2)),
      ['#1', '#3', '#4', '#5'],
    )
  })

  it('keeps ten messages by default, from one of the user on, and all without a policy', async () => {
    const texts = Array.from({ length: 15 }, (_, n) => numbered(n, 300))
    for (const [context_policy, count] of [
      [policy(), 9],
      [null, 15],
    ] as const) {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], { context_policy })
      await generate(await conversation(texts), agentId)
      assert.equal(textsOf((await requests())[0]).length, count)
    }
  })

  it('counts the text of a file that the model gets as text', async () => {
    const upload = async (characters: number) =>
      expectStatus(
        await app.admin.post('/files/upload/base64', {
          project_id: app.projectId,
          filename: `${characters}.txt`,
          content_type: 'text/plain',
          content: Buffer.from('word '.repeat(characters / 5)).toString('base64'),
        }),
        201,
      ).id as string
    for (const [characters, count] of [
      [1000, 2],
      [16_000, 1],
    ] as const) {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
        context_policy: policy({ max_context_tokens: 3000, keep_last_messages: 1 }),
      })
      const { id } = expectStatus(await app.key.post('/conversations', {}), 201)
      const parts = [
        { type: 'text', text: 'Read this.' },
        { type: 'file', file_id: await upload(characters) },
      ]
      expectStatus(await app.admin.post(`/conversations/${id}/messages`, { role: 'user', parts }), 201)
      expectStatus(await app.key.post(`/conversations/${id}/messages`, { role: 'user', message: 'And?' }), 201)
      await generate(id, agentId)
      assert.equal((await requests())[0].body.messages.length, count)
    }
  })

  it('bounds the messages of a request without a conversation', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
      context_policy: policy({ keep_last_messages: 1 }),
    })
    const messages = Array.from({ length: 21 }, (_, n) => ({
      role: n % 2 === 0 ? 'user' : 'assistant',
      content: numbered(n, 100),
    }))
    expectStatus(await app.key.post(`/agents/${agentId}/generate?wait=true`, { messages }), 200)
    const [request] = await requests()
    assert.ok(tokensOf(request) <= 1000)
    assert.match(textsOf(request).at(-1) as string, /^#20 /)
  })

  it('never leaves the result of a tool without its call, and drops more as a turn grows', async () => {
    const tool = { name: 'lookup', execute: { method: 'GET', url: `${app.url}/healthz` } }
    const call = (n: number) => ({
      text: numbered(n, 100),
      tool_calls: [{ name: 'lookup', args: {} }],
    })
    const rules = Array.from({ length: 12 }, (_, n) => [
      { when: { call: n * 3 + 1 }, reply: call(n) },
      { when: { call: n * 3 + 2 }, reply: call(n) },
      { when: { call: n * 3 + 3 }, reply: { text: `reply ${n}` } },
    ]).flat()
    const { agentId, requests } = await app.scripted(rules, {
      tool_bindings: [{ tool }],
      context_policy: policy({ keep_last_messages: 1 }),
    })
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    for (let n = 0; n < 6; n++)
      expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: numbered(n, 40) }), 201)
    const sent = await requests()
    assert.equal(sent.length, 18)
    for (const { body } of sent) {
      const called = new Set<string>()
      for (const { tool_calls = [], tool_call_id } of body.messages) {
        for (const { id } of tool_calls) called.add(id)
        if (tool_call_id !== undefined) assert.ok(called.has(tool_call_id), JSON.stringify(body.messages))
      }
    }
    const counts = sent.slice(-3).map(({ body }) => body.messages.filter(({ role }: Json) => role === 'user').length)
    assert.ok(counts[2] <= counts[0], String(counts))
    assert.ok(tokensOf(sent.at(-1) as Json) <= 1000)
  })

  it('corrects the estimate by the metered input of the last turn', async () => {
    // This model has four times as many tokens as estimated.
    const { agentId, requests } = await app.scripted(
      [{ when: { call: 1 }, reply: { text: 'ok', usage: { prompt_tokens: 2000 } } }, { reply: { text: 'ok' } }],
      { context_policy: policy({ keep_last_messages: 1 }) },
    )
    const id = await conversation(Array.from({ length: 9 }, (_, n) => numbered(n, 60)))
    await generate(id, agentId)
    await generate(id, agentId)
    const [first, second] = (await requests()).map(textsOf)
    assert.equal(first.length, 9)
    assert.ok(second.length < 6, String(second.length))
    // A short request, to which vendors add much, corrects nothing.
    const short = await app.scripted(
      [{ when: { call: 1 }, reply: { text: 'ok', usage: { prompt_tokens: 900 } } }, { reply: { text: 'ok' } }],
      { context_policy: policy({ keep_last_messages: 1 }) },
    )
    const other = await conversation(['hello'])
    await generate(other, short.agentId)
    for (let n = 1; n < 6; n++)
      expectStatus(
        await app.key.post(`/conversations/${other}/messages`, { role: 'user', message: numbered(n, 60) }),
        201,
      )
    await generate(other, short.agentId)
    assert.equal(textsOf((await short.requests())[1]).length, 7)
    // The double meters less again, but never raises the bound above the estimate.
    await generate(id, agentId)
    assert.ok(tokensOf((await requests())[2]) <= 1000)
  })

  it('costs a turn of a session no statement', async () => {
    const counted = await startSessionApp({ inProcess: true, actions: ['sessions:*', 'conversations:*'] })
    try {
      // Sweeps of the process add statements now and then, more often on a busy machine.
      const fewest = async (fields: Json, target = 0) => {
        const { agentId } = await counted.scripted([{ reply: { text: 'ok' } }], fields)
        const session = await counted.session({ agent_id: agentId, auto_generate: true })
        const counts: number[] = []
        while (counts.length < 8 || (counts.length < 40 && Math.min(...counts) > target && target > 0)) {
          await sleep(SETTLED_MS)
          const counter = countStatements()
          expectStatus(await counted.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hello' }), 201)
          counter.stop()
          counts.push(counter.value)
        }
        return Math.min(...counts)
      }
      const plain = await fewest({})
      const bounded = await fewest({ context_policy: policy({ strategy: 'summarize' }) }, plain)
      assert.ok(bounded <= plain, `${bounded} statements, ${plain} without a policy`)
    } finally {
      await counted.close()
    }
  })

  describe('in a configuration', () => {
    const agents = () => app.admin
    const create = (context_policy: unknown) =>
      agents().post('/agents', { project_id: app.projectId, ai_provider_id: app.providerId, context_policy })
    const route = async () =>
      expectStatus(
        await agents().post('/model-routes', {
          project_id: app.projectId,
          name: 'summaries',
          targets: [{ ai_provider_id: app.providerId, model: 'double-1' }],
        }),
        201,
      ).id as string

    it('is validated, stored as written and versioned', async () => {
      for (const bad of [
        { strategy: 'drop' },
        policy({ max_context_tokens: 999 }),
        policy({ strategy: 'forget' }),
        policy({ keep_last_messages: 0 }),
        policy({ extra: 1 }),
        policy({ summary_max_tokens: 501 }),
      ])
        expectRefusal(await create(bad), 400, 'VALIDATION_FAILED')
      const agent = expectStatus(await create(policy()), 201)
      assert.deepEqual(agent.context_policy, policy())
      const changed = expectStatus(
        await agents().patch(`/agents/${agent.id}`, { context_policy: policy({ strategy: 'summarize' }) }),
        200,
      )
      assert.deepEqual([changed.version, changed.context_policy.strategy], [2, 'summarize'])
      const restored = expectStatus(await agents().post(`/agents/${agent.id}/versions/1/restore`), 200)
      assert.deepEqual(restored.context_policy, policy())
    })

    it('is copied by a project clone with its model route', async () => {
      const summary_model_route_id = await route()
      const agent = expectStatus(await create(policy({ summary_model_route_id })), 201)
      const cloning = { name: 'copy', include: ['agents'] }
      const { ids } = expectStatus(await agents().post(`/projects/${app.projectId}/clone`, cloning), 201)
      const copy = expectStatus(await agents().get(`/agents/${ids[agent.id]}`), 200)
      assert.deepEqual(copy.context_policy, policy({ summary_model_route_id: ids[summary_model_route_id] }))
      expectStatus(await agents().patch(`/agents/${agent.id}`, { context_policy: null }), 200)
      expectStatus(await agents().delete(`/model-routes/${summary_model_route_id}`), 204)
    })

    it('protects its model route, also in a served version', async () => {
      const other = await app.project()
      const summary_model_route_id = await route()
      const named = policy({ strategy: 'summarize', summary_model_route_id })
      expectRefusal(
        await other.key.post('/agents', { ai_provider_id: app.providerId, context_policy: named }),
        400,
        'MODEL_ROUTE_NOT_FOUND',
      )
      expectRefusal(
        await create(policy({ summary_model_route_id: 'route_00000000000000000000000000' })),
        400,
        'MODEL_ROUTE_NOT_FOUND',
      )
      const agent = expectStatus(await create(named), 201)
      const remove = () => agents().delete(`/model-routes/${summary_model_route_id}`)
      expectRefusal(await remove(), 409, 'MODEL_ROUTE_HAS_DEPENDENTS')
      await agents().patch(`/agents/${agent.id}`, { context_policy: null })
      expectStatus(
        await agents().put(`/agents/${agent.id}/release`, {
          stable_version: 1,
          canary_version: 2,
          canary_percent: 0,
        }),
        200,
      )
      expectRefusal(await remove(), 409, 'MODEL_ROUTE_HAS_DEPENDENTS')
      expectStatus(await agents().patch(`/agents/${agent.id}`, { context_policy: null, max_steps: 3 }), 200)
      expectStatus(await agents().post(`/agents/${agent.id}/release/abort`), 200)
      await agents().patch(`/agents/${agent.id}`, { context_policy: null })
      expectStatus(await remove(), 204)
    })
  })
})
