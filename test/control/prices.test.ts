import assert from 'node:assert/strict'
import { recordUsage } from '#control/usage/meter.ts'
import { voidStatement } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestProject } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { usageOf, useOf } from './usage-support.ts'

const PAST = '2020-01-01T00:00:00.000Z'
const FUTURE = '2999-01-01T00:00:00.000Z'
const row = (fields: object = {}) => ({
  provider: 'openai',
  model: 'gpt-test',
  component: 'input_tokens',
  unit: 'token',
  unit_price: 1e-6,
  effective_from: PAST,
  ...fields,
})

describe('prices', () => {
  const app = forSuite(startApp)
  let project: TestProject
  let model = ''
  let counter = 0
  beforeEach(async () => {
    project = await app.projectWith(['projects:*', 'ai-providers:*', 'usage:*', 'tools:*', 'agents:*', 'activity:*'])
    model = `model-${++counter}`
  })

  const own = (prices: object[], key: Client = project.key) => key.put(`/projects/${project.id}/prices`, { prices })
  const global = (prices: object[]) => app.admin.put('/usage/prices', { prices })
  const ok = (reply: { status: number; body: any }) => {
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body.prices
  }
  const refused = ({ status, body }: { status: number; body: any }) => {
    assert.deepEqual([status, body?.error?.code], [400, 'VALIDATION_FAILED'], JSON.stringify(body))
    return body.error.meta
  }
  const provider = async () => {
    return (
      await createdBy(app.admin, '/ai-providers', {
        project_id: project.id,
        name: 'ours',
        provider: 'custom',
        default_model: 'm',
        base_url: 'http://127.0.0.1:9/v1',
      })
    ).id as string
  }
  /** The event of a use of 1,000 tokens in and 500 out. */
  const used = async (fields: object = {}) => {
    const draft = useOf(project.id, { model, ...fields })
    await recordUsage(app.servicesOf(project.id), [draft])
    return (await usageOf(app, project.id)).find(({ idempotency_key }) => idempotency_key === draft.idempotency_key)
  }
  const costs = (event: any) =>
    Object.fromEntries(event.components.map(({ component, cost_usd }: any) => [component, cost_usd]))

  it('begin at a time that may be given with any offset', async () => {
    const [price] = ok(await own([row({ model, effective_from: '2020-01-02T00:00:00+23:59' })]))
    assert.equal(price.effective_from, '2020-01-01T00:01:00.000Z')
  })

  it('make the cost of a use, which a later price does not change', async () => {
    const [input, output] = ok(
      await own([row({ model }), row({ model, component: 'output_tokens', unit_price: 2e-6 })]),
    )
    const { id, created_at } = await used()
    const shown = async () =>
      (await project.key.get(`/usage/events?to=${created_at}`)).body.data.find((event: any) => event.id === id)
    const before = await shown()
    assert.equal(before.cost_usd, 0.002)
    assert.deepEqual(before.components, [
      {
        component: 'input_tokens',
        quantity: 1000,
        unit: 'token',
        billable: true,
        unit_price: 1e-6,
        cost_usd: 0.001,
        price_id: input.id,
      },
      {
        component: 'output_tokens',
        quantity: 500,
        unit: 'token',
        billable: true,
        unit_price: 2e-6,
        cost_usd: 0.001,
        price_id: output.id,
      },
    ])
    const soon = new Date(Date.now() + 1500).toISOString()
    ok(await own([row({ model, unit_price: 9, effective_from: soon })]))
    await eventually(async () => (await used()).cost_usd > 1, { what: 'the later price' })
    assert.deepEqual(await shown(), before)
    await assert.rejects(app.pool.query(voidStatement`update usage_events set cost_usd = 0`))
  })

  it('are of the provider before the project, and of the project before all', async () => {
    const ai_provider_id = await provider()
    const fields = { provider: 'custom', ai_provider_id }
    const price = { model, component: 'input_tokens', unit: 'token', effective_from: PAST }
    // The narrowest first: where a broader one is in force, others begin in the future.
    ok(await project.key.put(`/ai-providers/${ai_provider_id}/prices`, { prices: [{ ...price, unit_price: 3 }] }))
    ok(await own([row({ ...price, provider: 'custom', unit_price: 2 })]))
    ok(await global([row({ ...price, provider: 'custom', unit_price: 1 })]))
    assert.equal((await used(fields)).cost_usd, 3000)
    assert.equal((await used({ provider: 'custom' })).cost_usd, 2000)
    const other = useOf((await app.project()).id, { model, provider: 'custom' })
    await recordUsage(app.servicesOf(other.project_id), [other])
    assert.equal((await usageOf(app, other.project_id))[0].cost_usd, 1000)
  })

  it('of a narrower scope begin in the future where a broader one is in force', async () => {
    ok(await global([row({ model })]))
    const meta = refused(await own([row({ model })]))
    assert.deepEqual(
      [meta.provider, meta.model, meta.component, meta.effective_from],
      ['openai', model, 'input_tokens', PAST],
    )
  })

  it('dated before usage that is priced already are refused, with all of their request', async () => {
    ok(await own([row({ model })]))
    const other = row({ model: `${model}-other` })
    for (const again of [row({ model }), row({ model, effective_from: new Date().toISOString() })])
      assert.equal(refused(await own([other, again])).problems[0].path, 'prices[1].effective_from')
    const { body } = await project.key.get(`/projects/${project.id}/prices`)
    assert.deepEqual([body.total, body.data[0].unit_price], [1, 1e-6])
  })

  it('that are to come are replaced by one for the same time, and deleted', async () => {
    const [first] = ok(await own([row({ model, effective_from: FUTURE })]))
    const [second] = ok(await own([row({ model, effective_from: FUTURE, unit_price: 3, unit: 'page' })]))
    assert.deepEqual([second.id, second.unit_price, second.unit], [first.id, 3, 'page'])
    const [now] = ok(await own([row({ model })]))
    const path = `/projects/${project.id}/prices`
    assert.equal((await project.key.delete(`${path}/${now.id}`)).body.error.code, 'PRICE_IN_EFFECT')
    assert.equal((await project.key.delete(`${path}/${first.id}`)).status, 204)
    assert.equal((await project.key.delete(`${path}/${first.id}`)).status, 404)
    const other = await app.projectWith(['projects:*'])
    assert.equal((await other.key.delete(`/projects/${other.id}/prices/${now.id}`)).status, 404)
  })

  it('created first by concurrent requests with different dates are one', async () => {
    const replies = await Promise.all(
      Array.from({ length: 8 }, (_, n) => own([row({ model, effective_from: `2020-01-0${n + 1}T00:00:00Z` })])),
    )
    assert.deepEqual(replies.map(({ status }) => status).sort(), [200, ...Array(7).fill(400)])
  })

  it('of cached tokens fall back to the price of input, in the narrowest scope', async () => {
    ok(await global([row({ model, unit_price: 1 }), row({ model, component: 'cache_write_tokens', unit_price: 5 })]))
    const cached = (component: string) => ({ component, quantity: 1, unit: 'token', billable: true })
    const components = [
      cached('cached_tokens'),
      cached('cache_write_tokens'),
      { ...cached('reasoning_tokens'), billable: false },
    ]
    const event = await used({ components })
    assert.deepEqual(costs(event), { cached_tokens: 1, cache_write_tokens: 5, reasoning_tokens: null })
    assert.equal(event.tokens, 1)
  })

  it('of parts of tokens fall back to the price of the whole', async () => {
    const price = (component: string, unit_price: number) => row({ model, component, unit_price })
    ok(await own([price('input_tokens', 1e-6), price('cache_write_tokens', 2e-6), price('output_tokens', 4e-6)]))
    const component = (name: string) => ({ component: name, quantity: 1000, unit: 'token', billable: true })
    const parts = ['cache_write_1h_tokens', 'cached_audio_tokens', 'image_input_tokens', 'audio_output_tokens']
    const event = await used({ components: parts.map(component) })
    const priced = new Map(event.components.map(({ component, unit_price }: any) => [component, unit_price]))
    assert.deepEqual(
      parts.map(name => priced.get(name)),
      [2e-6, 1e-6, 1e-6, 4e-6],
    )
    // Cache writes do not count, nor does units other than tokens.
    assert.equal(Number(event.tokens), 3000)
  })

  it('of a tier precede others, and of the largest size that a prompt exceeds, in a narrower scope first', async () => {
    const price = (unit_price: number, more: object = {}) => row({ model, unit_price, ...more })
    ok(await global([price(9e-6, { tier: 'priority', above_tokens: 100 })]))
    const ended = ok(
      await own([
        price(1e-6),
        price(2e-6, { above_tokens: 100 }),
        price(3e-6, { above_tokens: 500 }),
        price(4e-6, { tier: 'priority' }),
      ]),
    )
    const priceOf = async (service_tier: string | null, prompt_tokens: number) => {
      const components = [{ component: 'input_tokens', quantity: 1, unit: 'token', billable: true, prompt_tokens }]
      return Number((await used({ service_tier, components })).components[0].unit_price)
    }
    assert.equal(await priceOf(null, 100), 1e-6)
    assert.equal(await priceOf('flex', 101), 2e-6)
    assert.equal(await priceOf(null, 501), 3e-6)
    assert.equal(await priceOf('priority', 501), 4e-6)
    const path = `/projects/${project.id}/prices/${ended[3].id}?end=true`
    assert.equal((await project.key.delete(path)).status, 204)
    await eventually(async () => (await priceOf('priority', 501)) === 3e-6)
    assert.equal(await priceOf('priority', 50), 1e-6)
  })

  it('of a tier or a size of prompts are apart from others, but not backdated where these are in force', async () => {
    ok(await own([row({ model }), row({ model, tier: 'flex' }), row({ model, above_tokens: 200_000 })]))
    refused(await own([row({ model, tier: 'priority' })]))
    refused(await own([row({ model, above_tokens: 300_000 })]))
    ok(await own([row({ model, tier: 'priority', effective_from: FUTURE })]))
    refused(await own([row({ model, above_tokens: 0 })]))
    ok(await own([row({ model, component: 'web_searches', unit: 'search', tier: 'priority' })]))
    ok(await own([row({ model, component: 'web_searches', unit: 'search' })]))
    const tool = `srn:${project.id}:tool:tool_1`
    const [problem] = refused(await own([row({ model, resource: tool, tier: 'priority' })])).problems
    assert.equal(problem.path, 'prices[0].tier')
  })

  it('in another unit do not apply, and nothing priced is no cost', async () => {
    ok(await own([row({ model, unit: 'character' })]))
    assert.deepEqual(
      [(await used()).cost_usd, costs(await used())],
      [null, { input_tokens: null, output_tokens: null }],
    )
  })

  it('are exact to ten places, half to even', async () => {
    ok(
      await own([
        row({ model, unit_price: 0.00000000015 }),
        row({ model, component: 'output_tokens', unit_price: 0.00000000025 }),
      ]),
    )
    const one = (component: string) => ({ component, quantity: 1, unit: 'token', billable: true })
    const event = await used({ components: [one('input_tokens'), one('output_tokens')] })
    assert.deepEqual(costs(event), { input_tokens: 2e-10, output_tokens: 2e-10 })
    assert.equal(event.cost_usd, 4e-10)
  })

  it('are known to other processes when they are written', async () => {
    const web = await runWeb(app.databaseUrl)
    try {
      assert.equal((await used()).cost_usd, null)
      const reply = await fetch(`${web.url}/api/v1/projects/${project.id}/prices`, {
        method: 'PUT',
        headers: { authorization: `Bearer ${project.key.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ prices: [row({ model })] }),
      })
      assert.equal(reply.status, 200)
      await eventually(async () => (await used()).cost_usd === 0.001)
    } finally {
      await web.stop()
    }
  })

  it('do not apply to embeddings, which the deployment prices', async () => {
    ok(await own([row({ model, unit_price: 7 })]))
    const event = await used({ source: 'embedding' })
    assert.deepEqual([event.cost_usd, event.components[0].price_id], [0, null])
  })

  it('of a resource need one of the project', async () => {
    const resource = (name: string) => [row({ model, component: 'page', unit: 'page', resource: name })]
    refused(await own(resource('tool_1')))
    refused(await own(resource(`srn:${project.id}:actor:actor_1`)))
    refused(await own([row({ quantity: { var: 'output' } })]))
    const gone = `srn:${project.id}:tool:tool_${'0'.repeat(26)}`
    assert.equal((await own(resource(gone))).body.error.code, 'TOOL_NOT_FOUND')
    const agent = gone.replaceAll('tool', 'agent')
    assert.equal((await own(resource(agent))).body.error.code, 'AGENT_NOT_FOUND')
    const other = await app.project()
    refused(await own(resource(`srn:${other.id}:tool:tool_1`)))
  })

  it('of a project are read one by one, without prices of other projects', async () => {
    const providerId = await provider()
    const priced = {
      prices: [{ model, component: 'input_tokens', unit: 'token', unit_price: 1, effective_from: PAST }],
    }
    const [ours] = ok(await own([row({ model })]))
    const [theirs] = ok(await project.key.put(`/ai-providers/${providerId}/prices`, priced))
    const read = (id: string) => project.key.get(`/projects/${project.id}/prices/${id}`)
    const { status, body } = await read(ours.id)
    assert.deepEqual([status, body], [200, ours])
    const other = await read(theirs.id)
    assert.deepEqual([other.status, other.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
  })

  it('are read and written by who may', async () => {
    const { key } = await app.projectWith(['usage:*', 'projects:GetProjectPrices'])
    assert.equal((await key.get('/usage/prices')).status, 200)
    assert.equal((await key.put('/usage/prices', { prices: [row({ model })] })).status, 403)
    assert.equal((await own([row({ model })], key)).status, 403)
    const reader = await app.user(`reader-${counter}`, [
      {
        statement: [
          { effect: 'Allow', action: ['projects:GetProjectPrices'], resource: [`srn:*:project:${project.id}`] },
        ],
      },
    ])
    assert.equal((await reader.get('/usage/prices')).status, 200)
    assert.equal((await app.anonymous.get('/usage/prices')).status, 401)
    refused(await own(Array.from({ length: 501 }, (_, n) => row({ model: `m${n}` }))))
    refused(await own([row({ model, unit_price: -1 })]))
    refused(await own([row({ model, effective_from: 'soon' })]))
    refused(await own([row({ model, effective_from: '9999-12-31T23:00:00-02:00' })]))
    refused(await own([row({ model }), row({ model })]))
    assert.equal(
      (await global([row({ ai_provider_id: `aip_${'0'.repeat(26)}` })])).body.error.code,
      'AI_PROVIDER_NOT_FOUND',
    )
  })

  it('and usage keep a provider until it is forced away; usage stays', async () => {
    const id = await provider()
    const put = await project.key.put(`/ai-providers/${id}/prices`, {
      prices: [{ model, component: 'input_tokens', unit: 'token', unit_price: 4, effective_from: PAST }],
    })
    assert.deepEqual([ok(put)[0].provider, ok(put)[0].ai_provider_id], ['custom', id])
    assert.equal((await project.key.get(`/ai-providers/${id}/prices`)).body.total, 1)
    const event = await used({ provider: 'custom', ai_provider_id: id })
    assert.equal(event.cost_usd, 4000)
    const { status, body } = await app.admin.delete(`/ai-providers/${id}`)
    assert.deepEqual(
      [status, body.error.meta.counts, body.error.meta.forcible],
      [409, { price_overrides: 1, usage_events: 1 }, true],
    )
    assert.equal((await app.admin.delete(`/ai-providers/${id}?force=true`)).status, 204)
    const [kept] = (await project.key.get(`/usage/events?ai_provider_id=${id}`)).body.data
    assert.deepEqual([kept.id, kept.cost_usd], [event.id, 4000])
  })
})

describe('usage', () => {
  const app = forSuite(() => startApp({ env: { USAGE_REQUEST_FLUSH_INTERVAL_MS: '200' } }))

  it('is written once under its key, also by two concurrent writers', async () => {
    const { id } = await app.project()
    const draft = useOf(id)
    await Promise.all([recordUsage(app.servicesOf(id), [draft]), recordUsage(app.servicesOf(id), [draft])])
    await app.servicesOf(id).write(tx => recordUsage(app.servicesOf(id), [draft], tx))
    assert.equal((await usageOf(app, id)).length, 1)
  })

  it('is committed or rolled back with the work that it is part of', async () => {
    const { id } = await app.project()
    const failing = app.servicesOf(id).write(async tx => {
      await recordUsage(app.servicesOf(id), [useOf(id)], tx)
      throw new Error('undone')
    })
    await assert.rejects(failing, /undone/)
    assert.deepEqual(await usageOf(app, id), [])
  })

  it('is of requests of keys, counted in memory and written at intervals and at the end', async () => {
    const { id, key, keyId } = await app.projectWith(['usage:ListUsageEvents'])
    const requests = async () => (await usageOf(app, id)).filter(({ meter_type }) => meter_type === 'api_request')
    const count = async () => (await requests()).reduce((sum, { components }) => sum + components[0].quantity, 0)
    for (let n = 0; n < 5; n++) await key.get('/usage/events')
    await app.admin.get(`/usage/events?project_id=${id}`)
    await key.get('/actors')
    await eventually(async () => (await count()) === 6)
    const [first] = await requests()
    assert.ok(first.idempotency_key.startsWith(`api_request:${id}:${keyId}:`), first.idempotency_key)
    assert.deepEqual([first.provider, first.model, first.components[0].unit], ['platform', 'request', 'request'])

    const web = await runWeb(app.databaseUrl, { USAGE_REQUEST_FLUSH_INTERVAL_MS: '3600000' })
    for (let n = 0; n < 3; n++)
      await fetch(`${web.url}/api/v1/usage/events`, { headers: { authorization: `Bearer ${key.token}` } })
    await web.stop()
    assert.equal(await count(), 9)
  })

  it('counts before a project is deleted', async () => {
    const { id } = await app.project()
    await recordUsage(app.servicesOf(id), [useOf(id)])
    const refused = await app.admin.delete(`/projects/${id}`)
    assert.deepEqual([refused.status, refused.body.error.meta.counts.usage_events], [409, 1])
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.deepEqual(await usageOf(app, id), [])
  })
})
