import assert from 'node:assert/strict'
import { type Client, client, startApp, type TestApp } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { postedBy } from '../support/replies.ts'
import type { Plan, Reply } from '../support/vendors/plan.ts'
import { processSettings, profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

type Case = {
  billed?: Reply['billed']
  /** Components of the event. */
  used: Record<string, number>
  served: string | null
  tier: string | null
}

/** What a call reports: 1,000 tokens of a prompt of which 200 are cached, 100 tokens of which 40 are reasoning. */
const USAGE = { prompt_tokens: 1000, cached_tokens: 200, completion_tokens: 100, reasoning_tokens: 40 }
const PLAIN = { input_tokens: 800, cached_tokens: 200, output_tokens: 100, reasoning_tokens: 40 }
const WRITTEN = { written: 300, written_1h: 100 }
const GEMINI: Omit<Case, 'tier'> & { billed: object } = {
  billed: {
    audio: { input: 100, cached: 60 },
    image: { input: 90, output: 10 },
    searches: 3,
    model: 'gemini-3-pro-002',
  },
  used: {
    input_tokens: 670,
    audio_input_tokens: 40,
    image_input_tokens: 90,
    cached_tokens: 140,
    cached_audio_tokens: 60,
    output_tokens: 90,
    image_output_tokens: 10,
    reasoning_tokens: 40,
    web_searches: 3,
  },
  served: 'gemini-3-pro-002',
}

const CASES: Record<string, Case> = {
  anthropic: {
    billed: { ...WRITTEN, searches: 2, tier: 'priority', model: 'claude-sonnet-4-6-20260217' },
    used: { ...PLAIN, input_tokens: 500, cache_write_tokens: 200, cache_write_1h_tokens: 100, web_searches: 2 },
    served: 'claude-sonnet-4-6-20260217',
    tier: 'priority',
  },
  'openai responses': {
    billed: { written: 300, written_12h: 100, searches: 2, tier: 'priority', model: 'gpt-5-mini-2025-08-07' },
    used: { ...PLAIN, input_tokens: 500, cache_write_tokens: 200, cache_write_12h_tokens: 100, web_searches: 2 },
    served: 'gpt-5-mini-2025-08-07',
    tier: 'priority',
  },
  'openai chat': {
    billed: { audio: { input: 50, output: 20 }, tier: 'flex', model: 'gpt-5-mini-2025-08-07' },
    used: { ...PLAIN, input_tokens: 750, audio_input_tokens: 50, output_tokens: 80, audio_output_tokens: 20 },
    served: 'gpt-5-mini-2025-08-07',
    tier: 'flex',
  },
  'azure chat': {
    billed: { model: 'gpt-5-mini-2025-08-07' },
    used: PLAIN,
    served: 'gpt-5-mini-2025-08-07',
    tier: 'default',
  },
  google: { ...GEMINI, billed: { ...GEMINI.billed, tier: 'flex' }, tier: 'flex' },
  vertex: { ...GEMINI, tier: null },
  'bedrock claude': {
    billed: { ...WRITTEN, tier: 'flex' },
    used: {
      input_tokens: 500,
      cached_tokens: 200,
      cache_write_tokens: 200,
      cache_write_1h_tokens: 100,
      output_tokens: 100,
    },
    served: null,
    tier: 'flex',
  },
  xai: {
    billed: { searches: 2, tier: 'priority', model: 'grok-4-0709' },
    used: { ...PLAIN, web_searches: 2 },
    served: 'grok-4-0709',
    tier: 'priority',
  },
  groq: { billed: { tier: 'flex' }, used: PLAIN, served: 'openai/gpt-oss-120b', tier: 'flex' },
  'custom openai': {
    billed: { reasoning_apart: true, image: { input: 90 }, model: 'grok-4-0709' },
    used: { ...PLAIN, input_tokens: 710, image_input_tokens: 90 },
    served: 'grok-4-0709',
    tier: 'default',
  },
  'custom deepseek': { used: PLAIN, served: 'deepseek-reasoner', tier: null },
  'custom kimi': { used: PLAIN, served: 'kimi-k2.6', tier: null },
  'custom openrouter': {
    billed: { written: 300, searches: 2 },
    used: { ...PLAIN, input_tokens: 500, cache_write_tokens: 300, web_searches: 2 },
    served: 'anthropic/claude-sonnet-4.6',
    tier: null,
  },
}

/** Prices of a unit in billionths of a dollar. */
const PRICES: Record<string, number> = {
  input_tokens: 1_000,
  cached_tokens: 100,
  cached_audio_tokens: 300,
  cache_write_tokens: 1_250,
  cache_write_1h_tokens: 2_000,
  cache_write_12h_tokens: 2_500,
  output_tokens: 5_000,
  audio_input_tokens: 3_000,
  audio_output_tokens: 9_000,
  image_output_tokens: 30_000,
  web_searches: 10_000_000,
}
const OF_TIER = { tier: 'priority', component: 'input_tokens', billionths: 1_750 }

/** Returns the cost of components in billionths of a dollar. */
const costOf = (used: Record<string, number>, tier: string | null): number =>
  Object.entries(used).reduce((sum, [component, quantity]) => {
    if (component === 'reasoning_tokens') return sum
    // Images have no separate price.
    const priced = component === 'image_input_tokens' ? 'input_tokens' : component
    const each = tier === OF_TIER.tier && priced === OF_TIER.component ? OF_TIER.billionths : PRICES[priced]!
    return sum + quantity * each
  }, 0)

const inBillionths = (usd: number): number => Math.round(usd * 1e9)
const quantities = (event: any): Record<string, number> =>
  Object.fromEntries(event.components.map(({ component, quantity }: any) => [component, quantity]))

describe('usage that vendors report', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  const processes: TestProcess[] = []
  let lanes = 0

  before(async () => {
    ;[simulators, tools, app] = await Promise.all([startSimulators(), startToolServer(), startApp()])
    const { env, flags } = processSettings(simulators.url)
    const settings = { EGRESS_ALLOW_HOSTS: '127.0.0.1', WORKER_CONCURRENCY: '24', ...env }
    const start = (kind: 'web' | 'worker', ...args: string[]) =>
      startProcess(kind, app.databaseUrl, settings, args, flags)
    processes.push(...(await Promise.all([start('web'), start('worker', 'generation')])))
    const project = await app.projectWith([
      'agents:*',
      'ai-providers:*',
      'chats:*',
      'generations:*',
      'model-routes:*',
      'secrets:*',
      'tools:*',
      'traces:*',
      'usage:*',
    ])
    key = client(processes[0]!.url, project.key.token)
  })
  after(async () => {
    await Promise.all(processes.map(({ kill }) => kill('SIGTERM')))
    await Promise.all([app?.close(), simulators?.close(), tools?.close()])
  })

  const made = (path: string, body: object) => postedBy(key, path, body)

  /** A provider with its own lane at a simulator. */
  const vendor = async (name: string) => {
    const lane = `ABSK-usage-${++lanes}`
    const profile = profiles.find(each => each.name === name)!
    const secret = await made('/secrets', { name: lane, value: lane })
    const { id } = await made('/ai-providers', { ...providerFields(profile, simulators.url), secret_id: secret.id })
    return {
      id: id as string,
      model: profile.model,
      plan: (plan: Plan) => simulators.plan(lane, plan),
      calls: () => simulators.calls(lane),
    }
  }

  const put = async (providerId: string, prices: object[]) => {
    const reply = await key.put(`/ai-providers/${providerId}/prices`, { prices })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
  }
  const price = (model: string, component: string, billionths: number, more: object = {}) => ({
    model,
    component,
    unit: component === 'web_searches' ? 'search' : component === 'unreported_calls' ? 'call' : 'token',
    unit_price: billionths / 1e9,
    effective_from: '2026-01-01',
    ...more,
  })

  const turn = async (ai_provider_id: string, fields: object = {}) => {
    const agent = await made('/agents', { name: 'agent', ai_provider_id, ...fields })
    const body = await made(`/agents/${agent.id}/generate?wait=true`, { prompt: 'Hello' })
    assert.equal(body.status, 'completed', JSON.stringify(body))
    return body
  }
  const eventsOf = async (generationId: string): Promise<any[]> =>
    (await key.get(`/usage/events?generation_id=${generationId}`)).body.data

  for (const [name, { billed, used, served, tier }] of Object.entries(CASES))
    for (const form of ['streamed', 'whole'])
      it(`is metered and priced by its components: ${name}, ${form}`, async () => {
        const { id, model, plan, calls } = await vendor(name)
        const { component, billionths } = OF_TIER
        await put(id, [
          ...Object.entries(PRICES).map(([each, of]) => price(model, each, of)),
          price(model, component, billionths, { tier: OF_TIER.tier }),
        ])
        const reply: Reply = { text: 'fine', usage: USAGE, billed }
        plan(({ stream }) =>
          stream && form === 'whole' ? { error: { status: 400, message: 'streaming is not supported' } } : reply,
        )
        const generation = await turn(id)
        const [event, ...others] = await eventsOf(generation.id)
        assert.equal(others.length, 0)
        assert.equal(calls().at(-1)!.stream, form === 'streamed')
        assert.deepEqual(quantities(event), used)
        assert.deepEqual([event.model, event.served_model, event.service_tier], [model, served, tier])
        assert.equal(inBillionths(event.cost_usd), costOf(used, tier))
        const { usage } = generation
        assert.deepEqual([usage.output_tokens, usage.input_tokens], [100, 1000])
        const { steps } = (await key.get(`/generations/${generation.id}/transcript`)).body
        assert.deepEqual([steps[0].served_model, steps[0].service_tier], [served, tier])
        const aggregate = (await key.get(`/usage/aggregate?generation_id=${generation.id}`)).body.totals
        assert.deepEqual([aggregate.output_tokens, aggregate.input_tokens], [100, 1000])
        assert.equal(aggregate.cache_write_tokens, billed?.written ?? 0)
      })

  for (const name of ['openai responses', 'openai chat', 'xai', 'groq', 'custom openai', 'bedrock claude', 'google'])
    it(`is an event of unknown quantity if there is none: ${name}`, async () => {
      const { id, model, plan } = await vendor(name)
      await put(id, [price(model, 'input_tokens', 1_000)])
      plan({ text: 'fine', usage: null })
      const generation = await turn(id)
      assert.equal(generation.usage, null)
      const [event] = await eventsOf(generation.id)
      assert.deepEqual(quantities(event), { unreported_calls: 1 })
      assert.equal(event.cost_usd, null)
      const { totals } = (await key.get(`/usage/aggregate?generation_id=${generation.id}`)).body
      assert.deepEqual(totals.components, [
        {
          component: 'unreported_calls',
          unit: 'call',
          quantity: 1,
          cost_usd: null,
          unpriced_quantity: 1,
          unpriced_share: 1,
        },
      ])
      assert.equal(totals.event_count, 1)
      await put(id, [price(model, 'unreported_calls', 2_000_000)])
      const [priced] = await eventsOf((await turn(id)).id)
      assert.equal(priced.cost_usd, 0.002)
    })

  it('is estimated in a chat completion without it, and says so', async () => {
    const { id, model, plan } = await vendor('custom openai')
    plan({ text: 'fine', usage: null })
    const chat = await made('/chat/completions', {
      ai_provider_id: id,
      model,
      messages: [{ role: 'user', content: 'Hello' }],
    })
    assert.ok(chat)
    const { data } = (await key.get(`/usage/events?ai_provider_id=${id}`)).body
    assert.deepEqual(Object.keys(quantities(data[0])), ['input_tokens', 'output_tokens', 'estimated_calls'])
  })

  it('prices each call of a turn by its own prompt, cached tokens included', async () => {
    const { id, model, plan } = await vendor('openai chat')
    await put(id, [
      price(model, 'input_tokens', 1_000),
      price(model, 'output_tokens', 2_000),
      price(model, 'input_tokens', 3_000, { above_tokens: 200_000 }),
      price(model, 'output_tokens', 4_000, { above_tokens: 200_000 }),
      price(model, 'input_tokens', 5_000, { above_tokens: 200_000, tier: 'priority' }),
    ])
    const call = { tool_calls: [{ name: 'weather', args: { city: 'Paris' } }] }
    const used = (prompt_tokens: number, cached_tokens = 0) => ({
      usage: { prompt_tokens, cached_tokens, completion_tokens: 10, reasoning_tokens: 0 },
    })
    plan([
      { ...call, ...used(200_000) },
      { ...call, ...used(200_001, 150_000) },
      { text: 'done', ...used(300_000), billed: { tier: 'priority' } },
    ])
    const path = 'sizes.'
    const tool_bindings = [
      {
        tool: {
          name: 'weather',
          parameters: { type: 'object', properties: { city: { type: 'string' } } },
          execute: { url: `${tools.url}/${path}` },
        },
      },
    ]
    const events = (await eventsOf((await turn(id, { tool_bindings })).id)).filter(
      ({ meter_type }) => meter_type === 'llm_tokens',
    )
    const costs = events.map(({ service_tier, components }) => [
      service_tier,
      ...components.map(({ component, quantity, unit_price }: any) => [component, quantity, unit_price]),
    ])
    assert.deepEqual(
      costs.sort(([a], [b]) => (a < b ? -1 : 1)),
      [
        [
          'default',
          ['input_tokens', 200_000, 1e-6],
          ['output_tokens', 10, 2e-6],
          ['input_tokens', 50_001, 3e-6],
          ['cached_tokens', 150_000, 3e-6],
          ['output_tokens', 10, 4e-6],
        ],
        ['priority', ['input_tokens', 300_000, 5e-6], ['output_tokens', 10, 4e-6]],
      ],
    )
  })

  it('names the served model in the attempts of a route', async () => {
    const { id, model, plan } = await vendor('openai responses')
    plan({ text: 'fine', billed: { model: 'gpt-5-mini-2025-08-07' } })
    const route = await made('/model-routes', { name: 'route', targets: [{ ai_provider_id: id, model }] })
    const agent = await made('/agents', { name: 'agent', model_route_id: route.id })
    const { id: generationId } = await made(`/agents/${agent.id}/generate?wait=true`, { prompt: 'Hello' })
    const { routing } = (await key.get(`/generations/${generationId}`)).body
    assert.deepEqual(
      routing.attempts.map(({ model, served_model }: any) => [model, served_model]),
      [[model, 'gpt-5-mini-2025-08-07']],
    )
  })
})
