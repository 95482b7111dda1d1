import assert from 'node:assert/strict'
import { usageOf } from '../control/usage-support.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { accepted, shared } from './share-support.ts'
import { json, startTarget } from './tool-target.ts'

const USED = { prompt_tokens: 100, completion_tokens: 20, cached_tokens: 40 }
const script = (...replies: object[]) => ({
  prompt: `@double ${JSON.stringify(replies.map(reply => ({ usage: USED, ...reply })))}`,
})
const text = (text: string) => ({ text })

const quantities = (event: any) =>
  Object.fromEntries(event.components.map(({ component, quantity }: any) => [component, quantity]))

describe('usage of turns', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      together: true,
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: [
        'agents:*',
        'tools:*',
        'sessions:*',
        'actors:*',
        'generations:*',
        'traces:*',
        'usage:ListUsageEvents',
        'ai-providers:*',
        'shares:*',
        'projects:ManageProjectPrices',
      ],
    }),
  )
  beforeEach(() => {
    target.answer = json({ ok: true })
  })

  const inline = (name: string, fields: object = {}) => ({
    tool: { name, execute: { url: `${target.url}/${name}` }, ...fields },
  })
  const generate = async (agent: string, body: object) =>
    (await app.key.post(`/agents/${agent}/generate?wait=true`, body)).body
  const events = async (query: string) => (await app.key.get(`/usage/events?${query}`)).body.data as any[]
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'completed' || body.status === 'failed' ? body : null
    })
  const override = async (prices: object[]) => {
    const reply = await app.admin.put(`/ai-providers/${app.providerId}/prices`, { prices })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body.prices
  }

  it('is a count, whatever a provider reports', async () => {
    const made = { name: 'odd', provider: 'custom', base_url: `${target.url}/v1`, default_model: 'odd' }
    const provider = await app.admin.post('/ai-providers', { project_id: app.projectId, ...made })
    assert.equal(provider.status, 201, JSON.stringify(provider.body))
    const agent = await app.agent({ ai_provider_id: provider.body.id })
    const most = 1_000_000_000
    const answers: [number, number, number, object][] = [
      [1e300, 1e19, 0, { input_tokens: most, output_tokens: most }],
      [1.5, 2.5, 0, { input_tokens: 2, output_tokens: 3 }],
      [-7, 4, 0, { output_tokens: 4 }],
      [5, 4, 9, { cached_tokens: 9, output_tokens: 4 }],
    ]
    for (const [prompt_tokens, completion_tokens, cached_tokens, expected] of answers) {
      target.answer = json({
        ...{ id: 'c', object: 'chat.completion', created: 1, model: 'odd' },
        choices: [{ index: 0, message: { role: 'assistant', content: 'hi' }, finish_reason: 'stop' }],
        usage: { prompt_tokens, completion_tokens, total_tokens: 1, prompt_tokens_details: { cached_tokens } },
      })
      const turn = await generate(agent, { prompt: 'x' })
      assert.equal(turn.status, 'completed', JSON.stringify(turn))
      const [event] = await events(`generation_id=${turn.id}`)
      assert.deepEqual(quantities(event), expected)
    }
  })

  it('is one event of all steps, with the cost on the record, and tokens alone on steps', async () => {
    const common = { model: 'priced', unit: 'token', effective_from: '2020-01-01T00:00:00.000Z' }
    const [input, output] = await override([
      { ...common, component: 'input_tokens', unit_price: 1e-6 },
      { ...common, component: 'output_tokens', unit_price: 2e-6 },
    ])
    const agent = await app.agent({ model: 'priced', tool_bindings: [inline('look')] })
    const turn = await generate(agent, {
      ...script(toolCall('look'), toolCall('look'), toolCall('look'), text('done')),
      action_id: 'mine',
    })
    const [event, ...others] = await events(`generation_id=${turn.id}&meter_type=llm_tokens`)
    assert.deepEqual(others, [])
    assert.deepEqual(quantities(event), { input_tokens: 240, cached_tokens: 160, output_tokens: 80 })
    assert.equal(event.cost_usd, (240 + 160) * 1e-6 + 80 * 2e-6)
    assert.deepEqual(
      Object.fromEntries(event.components.map(({ component, price_id }: any) => [component, price_id])),
      { input_tokens: input.id, cached_tokens: input.id, output_tokens: output.id },
    )
    assert.deepEqual(
      [
        event.provider,
        event.model,
        event.ai_provider_id,
        event.agent_id,
        event.trace_id,
        event.action_id,
        event.source,
      ],
      ['custom', 'priced', app.providerId, agent, turn.trace_id, 'mine', null],
    )
    const totals = {
      cost_usd: event.cost_usd,
      input_tokens: 400,
      uncached_input_tokens: 240,
      output_tokens: 80,
      cached_tokens: 160,
      cache_write_tokens: 0,
      reasoning_tokens: 0,
    }
    assert.deepEqual(turn.usage, totals)
    assert.deepEqual((await app.key.get(`/generations/${turn.id}`)).body.usage, totals)
    const { steps } = (await app.key.get(`/generations/${turn.id}/transcript`)).body
    for (const { usage } of steps) {
      assert.equal(usage.cost_usd, null)
      assert.equal(usage.input_tokens, 100)
    }
  })

  it('is attributed to the end user of the session', async () => {
    const actor = (await app.key.post('/actors', { name: 'caller' })).body.id
    const session = (await app.key.post('/sessions', { agent_id: app.agentId, actor_id: actor, auto_generate: true }))
      .body.id
    const sent = await app.key.post(`/sessions/${session}/messages?wait=true`, { message: 'hello' })
    assert.equal(sent.status, 201, JSON.stringify(sent.body))
    const [event, ...others] = await events(`session_id=${session}`)
    assert.deepEqual(others, [])
    assert.deepEqual([event.actor_id, event.generation_id], [actor, sent.body.generation_id])
    assert.equal((await events(`actor_id=${actor}`)).length, 1)
    assert.deepEqual(await events('session_id=unknown'), [])
    assert.equal((await app.key.get('/usage/events?foo=1')).status, 400)
  })

  it('of an attempt at a provider is a separate event', async () => {
    const reply = await app.key.post(`/ai-providers/${app.providerId}/check`, { model: 'tried' })
    assert.equal(reply.body.ok, true, JSON.stringify(reply.body))
    const event = await eventually(async () => (await events('model=tried'))[0])
    assert.deepEqual(
      [event.meter_type, event.ai_provider_id, event.generation_id],
      ['llm_tokens', app.providerId, null],
    )
  })

  it('of a failed turn is the usage of its answered calls', async () => {
    const agent = await app.agent({
      tool_bindings: [inline('look')],
      output_schema: { type: 'object', required: ['n'], properties: { n: { type: 'integer' } } },
    })
    const asked = await app.key.post(`/agents/${agent}/generate`, script(toolCall('look'), text('no object')))
    const record = await ended(asked.body.generation_id)
    assert.equal(record.error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
    const [event] = await events(`generation_id=${record.id}&meter_type=llm_tokens`)
    assert.deepEqual(quantities(event), { input_tokens: 120, cached_tokens: 80, output_tokens: 40 })
  })

  it('is none of a turn whose model was not reached', async () => {
    const asked = await app.key.post(
      `/agents/${app.agentId}/generate`,
      script({ error: { status: 400, message: 'no' } }),
    )
    const record = await ended(asked.body.generation_id)
    assert.deepEqual([record.status, record.usage], ['failed', null])
    assert.deepEqual(await events(`generation_id=${record.id}`), [])
  })

  for (const [how, end] of Object.entries({
    cancelled: (id: string) => app.key.post(`/generations/${id}/cancel`),
    erased: (id: string) => app.key.delete(`/generations/${id}/content`),
  }))
    it(`of a paused turn that is ${how} is written with its end`, async () => {
      const agent = await app.agent({ tool_bindings: [{ tool: { name: 'ask', type: 'client' } }] })
      const paused = await generate(agent, script(toolCall('ask')))
      assert.equal(paused.status, 'requires_action', JSON.stringify(paused))
      assert.deepEqual(await events(`generation_id=${paused.id}`), [])
      assert.equal((await end(paused.id)).status, 200)
      const [event, ...others] = await events(`generation_id=${paused.id}`)
      assert.deepEqual(others, [])
      assert.deepEqual(quantities(event), { input_tokens: 60, cached_tokens: 40, output_tokens: 20 })
    })

  it('of steps that different models served is an event each, the first under the key of the turn', async () => {
    const double = client(app.double)
    await double.put('first', {
      rules: [
        { when: { call: 1 }, reply: { ...toolCall('look'), usage: USED } },
        { reply: { error: { status: 500, message: 'down' } } },
      ],
    })
    await double.put('second', {
      rules: [{ reply: { text: 'done', usage: { prompt_tokens: 7, completion_tokens: 3 } } }],
    })
    const route = await app.admin.post('/model-routes', {
      project_id: app.projectId,
      name: 'two',
      targets: ['first/m', 'second/m'].map(model => ({ ai_provider_id: app.providerId, model, max_retries: 0 })),
    })
    assert.equal(route.status, 201, JSON.stringify(route.body))
    const agent = await app.agent({
      ai_provider_id: null,
      model_route_id: route.body.id,
      tool_bindings: [inline('look')],
    })
    const turn = await generate(agent, { prompt: 'hello' })
    assert.equal(turn.status, 'completed', JSON.stringify(turn))
    const made = (await usageOf(app, app.projectId)).filter(
      ({ generation_id, meter_type }) => generation_id === turn.id && meter_type === 'llm_tokens',
    )
    assert.deepEqual(
      made.map(event => [event.idempotency_key, event.model, quantities(event)]),
      [
        [`gen:${turn.id}`, 'first/m', { input_tokens: 60, cached_tokens: 40, output_tokens: 20 }],
        [`gen:${turn.id}:1`, 'second/m', { input_tokens: 7, output_tokens: 3 }],
      ],
    )
  })

  it('through a share is of the consumer, at the prices of the publisher', async () => {
    const grantee = await app.projectWith(['agents:*', 'shares:*', 'projects:ManageProjectPrices', 'usage:*'])
    const agent = await app.agent({ model: 'shared-model' })
    const { id } = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: grantee.id })
    await accepted(grantee.key, id)
    const price = { provider: 'custom', model: 'shared-model', unit: 'token', effective_from: '2020-01-01T00:00:00Z' }
    const input = { ...price, component: 'input_tokens' }
    const premium = { ...price, component: 'premium', unit: 'turn', resource: `srn:${app.projectId}:agent:${agent}` }
    const put = async (project: string, key: Client, prices: object[]) =>
      assert.equal((await key.put(`/projects/${project}/prices`, { prices })).status, 200)
    await put(app.projectId, app.key, [
      { ...input, unit_price: 0.001 },
      { ...premium, unit_price: 5, quantity: { if: [{ '==': [{ var: 'output.content' }, 'hi'] }, 2, 1] } },
    ])
    await put(grantee.id, grantee.key, [{ ...input, unit_price: 77 }])
    const reply = await grantee.key.post(`/agents/${agent}/generate?wait=true`, script(text('hi')))
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    const [event] = (await grantee.key.get(`/usage/events?generation_id=${reply.body.id}`)).body.data
    assert.deepEqual([event.project_id, event.publisher_project_id], [grantee.id, app.projectId])
    assert.deepEqual(quantities(event), { input_tokens: 60, cached_tokens: 40, output_tokens: 20, premium: 2 })
    assert.equal(event.cost_usd, 100 * 0.001 + 10)
    assert.deepEqual(await events(`generation_id=${reply.body.id}`), [])
  })
})

describe('usage of turns whose workers are killed', function () {
  const TURNS = rounds('USAGE_TURNS', 80, 200)
  this.timeout(60_000 + TURNS * 600)
  const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

  it(`is one event of each of ${TURNS}, neither lost nor doubled, of what the model reported`, async () => {
    const app = await startAgentApp({ workers: [], actions: ['agents:*', 'generations:*', 'usage:ListUsageEvents'] })
    const double = client(app.double)
    let worker: TestProcess | null = null
    try {
      await double.put('many', { rules: [{ reply: { text: 'done', usage: USED, delay_ms: 5 } }] })
      const agent = await app.agent({ model: 'many/m' })
      for (let left = TURNS; left > 0; left -= 50) {
        const some = Array.from({ length: Math.min(50, left) }, () =>
          app.key.post(`/agents/${agent}/generate`, { prompt: 'x' }),
        )
        assert.ok((await Promise.all(some)).every(({ status }) => status === 202))
      }
      const completed = async () =>
        (await app.key.get(`/generations?agent_id=${agent}&status=completed`)).body.total as number
      // Each worker is killed when it has ended a part of the turns, and before some statement of another.
      for (const fault of ['', 'after_settle=kill', 'before_settle=kill', 'after_model=kill', '']) {
        const before = await completed()
        worker = await startProcess('worker', app.databaseUrl, { ...FAST, ...(fault ? { FAULT_POINTS: fault } : {}) }, [
          'generation',
        ])
        const { child } = worker
        await eventually(
          async () => child.signalCode !== null || (await completed()) >= Math.min(TURNS, before + TURNS / 8),
          {
            within: 60_000,
          },
        )
        await worker.kill()
      }
      worker = await startProcess('worker', app.databaseUrl, FAST, ['generation'])
      await eventually(async () => (await completed()) === TURNS, { within: 30_000 + TURNS * 450 })
      // In addition there are requests of the key, on a slow machine.
      const made = (await usageOf(app, app.projectId)).filter(({ meter_type }) => meter_type === 'llm_tokens')
      assert.equal(made.length, TURNS)
      assert.equal(new Set(made.map(({ generation_id }) => generation_id)).size, TURNS)
      const sum = (component: string) => made.reduce((total, event) => total + (quantities(event)[component] ?? 0), 0)
      assert.deepEqual(
        [sum('input_tokens'), sum('cached_tokens'), sum('output_tokens')],
        [60 * TURNS, 40 * TURNS, 20 * TURNS],
      )
    } finally {
      await worker?.kill()
      await app.close()
    }
  })
})
