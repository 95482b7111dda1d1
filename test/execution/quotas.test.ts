import assert from 'node:assert/strict'
import { after, afterEach, describe, it } from 'mocha'
import { listActorsByUsage } from '#control/usage/sums.ts'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { forgetUsage, insertUsage, tokenUse } from '../support/usage.ts'
import { startAgentApp } from './fixtures.ts'

const DAY = new Date().toISOString().slice(0, 10)

describe('quotas of tokens and money', function () {
  this.timeout(120_000)
  const app = forSuite(startAgentApp)
  let quotas: string[] = []
  /** No turn is active. */
  const settled = () =>
    eventually(async () => {
      const open = await app.pool.oneFirst(sql.unsafe`select count(*) from generation_work`)
      return Number(open) === 0
    })
  afterEach(async () => {
    await settled()
    for (const id of quotas) await app.admin.delete(`/quotas/${id}`)
    quotas = []
    await forgetUsage(app, app.projectId)
  })

  const quota = async (fields: object) => {
    const made = await app.admin.post('/quotas', {
      project_id: app.projectId,
      scope: 'project',
      metric: 'tokens',
      window: 'calendar_month',
      ...fields,
    })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    quotas.push(made.body.id)
    return made.body
  }
  const used = (tokens: number, fields: object = {}) =>
    insertUsage(app, app.projectId, [
      tokenUse({ cost: null, input: tokens, output: 0, generation_id: 'gen_before', ...fields }),
    ])
  const ask = (agentId = app.agentId, body: object = {}) =>
    app.key.post(`/agents/${agentId}/generate?wait=true`, { prompt: 'hello', ...body })
  const code = async (reply: ReturnType<typeof ask>) => {
    const { status, body } = await reply
    return status < 300 ? status : body.error.code
  }
  const generations = async () => (await app.key.get('/generations?limit=1')).body.total
  const measured = async (id: string) => (await app.key.get(`/quotas/${id}/usage`)).body
  const events = async (name: string, quotaId: string): Promise<any[]> =>
    (await storedEvents(app.pool, { project: app.projectId, name }))
      .map(({ envelope }) => envelope.data)
      .filter(({ quota_id, id }: any) => quota_id === quotaId || id === quotaId)
  const session = (actorId: string | null, fields: object = {}) =>
    createdBy(app.key, '/sessions', {
      agent_id: app.agentId,
      ...(actorId === null ? {} : { actor_id: actorId }),
      ...fields,
    })
  const actor = async () => (await app.key.post('/actors', { name: `caller ${Math.random()}` })).body.id as string
  const reply = async (sessionId: string) => {
    await app.key.post(`/sessions/${sessionId}/messages`, { message: 'hello' })
    return app.key.post(`/sessions/${sessionId}/generate?wait=true`)
  }

  it('count what turns use, and refuse the next at the limit without leaving anything', async () => {
    const { id } = await quota({ limit: 1 })
    assert.equal(await code(ask()), 200)
    const usage = await measured(id)
    assert.ok(usage.observed_value > 0)
    assert.equal(usage.remaining, 0)
    const before = await generations()
    const refused = await ask()
    assert.equal(refused.status, 429)
    assert.equal(refused.body.error.code, 'QUOTA_EXCEEDED')
    assert.ok(Number(refused.headers.get('retry-after')) >= 1)
    const { resets_at, ...meta } = refused.body.error.meta
    assert.deepEqual(meta, { quota_id: id, metric: 'tokens', limit: 1, window: 'calendar_month' })
    assert.equal(resets_at, usage.resets_at)
    assert.equal(await generations(), before)
    assert.equal((await measured(id)).observed_value, usage.observed_value)
    assert.equal((await app.admin.patch(`/quotas/${id}`, { mode: 'monitor' })).status, 200)
    assert.equal(await code(ask()), 200)
  })

  it('add up every window from its beginning', async () => {
    const windows = ['rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month']
    const made = await Promise.all(windows.map(window => quota({ window, limit: 1_000_000 })))
    const beginnings = () =>
      Promise.all(
        made.map(async ({ id }) => {
          const key = (await measured(id)).window_key as string
          return new Date(
            key.length === 7
              ? `${key}-01T00:00Z`
              : key.length === 11
                ? key.replace('Z', 'T00:00Z')
                : key.length === 14
                  ? key.replace('Z', ':00Z')
                  : key,
          ).getTime()
        }),
      )
    let starts: number[]
    let values: number[]
    // Again if another window has begun meanwhile.
    do {
      await forgetUsage(app, app.projectId)
      starts = await beginnings()
      // A token at each beginning and one right before it, which is in the longer windows only.
      for (const start of starts)
        for (const at of [start, start - 1]) await used(1, { created_at: new Date(at).toISOString() })
      values = await Promise.all(made.map(async ({ id }) => (await measured(id)).observed_value))
    } while (String(await beginnings()) !== String(starts))
    const expected = starts.map(start =>
      starts.reduce((sum, at) => sum + (at >= start ? 1 : 0) + (at - 1 >= start ? 1 : 0), 0),
    )
    assert.deepEqual(values, expected)
  })

  it('count uncached and cached input and output, and nothing else', async () => {
    const { id } = await quota({ limit: 1000 })
    await insertUsage(app, app.projectId, [
      tokenUse({ cost: 1, input: 10, output: 5, cached: 3 }),
      { meter_type: 'api_request', provider: 'platform', model: 'request', cost_usd: '5', tokens: 0, components: [] },
    ])
    assert.equal((await measured(id)).observed_value, 18)
    const all = await quota({ metric: 'cost_usd', limit: 100 })
    const models = await quota({ metric: 'cost_usd', limit: 100, meter_type: 'llm_tokens' })
    const requests = await quota({ metric: 'cost_usd', limit: 100, meter_type: 'api_request' })
    assert.deepEqual(
      await Promise.all([all, models, requests].map(async made => (await measured(made.id)).observed_value)),
      [6, 1, 5],
    )
    const left = await measured(all.id)
    assert.deepEqual([left.limit, left.remaining], [100, 94])
  })

  it('hold an agent to its own, every agent to the project, and name the most specific breach', async () => {
    const other = await app.agent()
    const ofAgent = await quota({ scope: 'agent', scope_ref: app.agentId, limit: 10 })
    await used(10, { agent_id: app.agentId })
    assert.equal((await ask()).body.error.meta.quota_id, ofAgent.id)
    assert.equal(await code(ask(other)), 200)
    const project = await quota({ limit: 10 })
    assert.equal((await ask(other)).body.error.meta.quota_id, project.id)
    assert.equal((await ask()).body.error.meta.quota_id, ofAgent.id)
    await app.admin.delete(`/quotas/${project.id}`)
    const every = await quota({ scope: 'agent', limit: 10 })
    assert.equal((await ask(other)).body.error.meta.quota_id, every.id)
  })

  it('give each end user a separate budget, and fire once for all of them', async () => {
    const { id } = await quota({ scope: 'actor', limit: 100 })
    const [one, two, three] = [await actor(), await actor(), await actor()]
    await used(100, { actor_id: one })
    await used(150, { actor_id: three })
    const refused = await reply((await session(one)).id)
    assert.equal(refused.status, 429)
    assert.equal(refused.body.error.meta.quota_id, id)
    assert.equal((await reply((await session(two)).id)).status, 200)
    assert.equal((await reply((await session(null)).id)).status, 200)
    assert.equal(await code(ask()), 200)
    assert.equal((await reply((await session(three)).id)).status, 429)
    const { observed_value, remaining, actors } = await measured(id)
    assert.deepEqual([observed_value, remaining], [150, 0])
    // The second has had a turn already.
    assert.deepEqual(
      actors.map(({ actor_id }: any) => actor_id),
      [three, one, two],
    )
    assert.deepEqual(actors.slice(0, 2), [
      { actor_id: three, observed_value: 150, remaining: 0 },
      { actor_id: one, observed_value: 100, remaining: 0 },
    ])
    assert.equal(actors[2].remaining, 100 - actors[2].observed_value)
    const talking = await session(one, { auto_generate: true })
    const waited = await app.key.post(`/sessions/${talking.id}/messages?wait=true`, { message: 'hello' })
    assert.deepEqual([waited.status, waited.body.error.code], [429, 'QUOTA_EXCEEDED'])
    const seconds = Number(waited.headers.get('retry-after'))
    const left = (new Date(waited.body.error.meta.resets_at).getTime() - Date.now()) / 1000
    assert.ok(Number.isInteger(seconds) && seconds >= left && seconds < left + 60, `${seconds} for ${left}`)
    await eventually(async () => (await events('quota.exceeded', id)).length > 0)
    const [fired, ...more] = await events('quota.exceeded', id)
    assert.equal(more.length, 0)
    assert.deepEqual(fired, {
      quota_id: id,
      project_id: app.projectId,
      scope: 'actor',
      scope_ref: null,
      metric: 'tokens',
      meter_type: null,
      window: 'calendar_month',
      window_key: DAY.slice(0, 7),
      limit: 100,
      observed_value: 100,
      mode: 'enforce',
    })
  })

  it('name the end users who used most in the window itself, not in the hour around it', async () => {
    const [early, late] = [await actor(), await actor()]
    await used(90, { actor_id: early, created_at: '2026-01-01T10:10:00Z' })
    await used(5, { actor_id: late, created_at: '2026-01-01T10:40:00Z' })
    const of = { project_id: app.projectId, metric: 'tokens' as const, meter: null }
    const since = (time: string) => listActorsByUsage(app.pool, { ...of, since: `2026-01-01T${time}Z` }, 10)
    assert.deepEqual(await since('10:30:00'), [{ actor_id: late, used: 5 }])
    assert.deepEqual(await since('10:00:00'), [
      { actor_id: early, used: 90 },
      { actor_id: late, used: 5 },
    ])
    const { id } = await quota({ limit: 1000 })
    assert.equal((await measured(id)).actors, null)
  })

  it('fire once per window under concurrent breaches, warn before, and audit breaches that they only monitor', async () => {
    const watched = await quota({ limit: 100, mode: 'monitor', warn_at: [0.5, 0.8] })
    await used(60)
    assert.equal(await code(ask()), 200)
    await eventually(async () => (await events('quotas.warned', watched.id)).length > 0)
    const warned = await events('quotas.warned', watched.id)
    assert.deepEqual(
      warned.map(({ fraction, observed_value }: any) => [fraction, observed_value]),
      [[0.5, 60]],
    )
    await used(1000)
    assert.deepEqual(await Promise.all(Array.from({ length: 6 }, () => code(ask()))), Array(6).fill(200))
    await eventually(async () => (await events('quota.exceeded', watched.id)).length === 1)
    await eventually(async () => (await events('quotas.warned', watched.id)).length === 2)
    const entries = await app.admin.get(`/audit-log?project_id=${app.projectId}&action=quotas:MonitorBreach`)
    const audited = entries.body.data.filter((entry: any) => entry.resource_public_id === watched.id)
    assert.equal(audited.length, 1)
    assert.equal(audited[0].detail.metric, 'tokens')
  })

  describe('of money without prices', () => {
    const unpriced = () => used(10, { model: 'm-x' })

    it('refuse calls once three have no price, with the unpriced model, unless configured otherwise', async () => {
      const made = await quota({ metric: 'cost_usd', limit: 5 })
      for (let n = 0; n < 2; n++) await unpriced()
      assert.equal(await code(ask()), 200)
      await eventually(async () => (await app.key.get('/usage/events')).body.total === 3)
      const refused = await ask()
      assert.equal(refused.status, 409)
      assert.equal(refused.headers.get('retry-after'), null)
      const { unpriced_rows, ...meta } = refused.body.error.meta
      assert.equal(refused.body.error.code, 'QUOTA_UNENFORCEABLE')
      assert.deepEqual(meta, { quota_id: made.id, metric: 'cost_usd', limit: 5, window: 'calendar_month' })
      assert.ok(
        unpriced_rows.some(
          (row: any) => row.model === 'm-x' && row.provider === 'openai' && row.component === 'input_tokens',
        ),
      )
      assert.deepEqual(await events('quota.exceeded', made.id), [])

      assert.equal((await app.admin.patch(`/quotas/${made.id}`, { on_unpriced: 'allow' })).status, 200)
      assert.equal(await code(ask()), 200)
      await app.admin.patch(`/quotas/${made.id}`, { on_unpriced: 'block', mode: 'monitor' })
      assert.equal(await code(ask()), 200)
      const open = await eventually(async () => {
        const { body } = await app.key.get('/exceptions?kind=quota_unpriced')
        const of = body.data.filter(({ detail }: any) => detail.quota_id === made.id)
        return of.length > 0 && of
      })
      assert.equal(open.length, 1)
      assert.equal(open[0].severity, 'warning')
      const { metered_events, unpriced_events, unpriced_rows: rows, ...detail } = open[0].detail
      assert.deepEqual(detail, {
        quota_id: made.id,
        metric: 'cost_usd',
        scope: 'project',
        scope_ref: null,
        meter_type: null,
        window: 'calendar_month',
        window_key: DAY.slice(0, 7),
        limit: 5,
      })
      assert.ok(metered_events >= 2 && unpriced_events >= 2 && rows.length > 0)
    })

    it('go by their limit first, and take a price in part for one', async () => {
      const made = await quota({ metric: 'cost_usd', limit: 5 })
      for (let n = 0; n < 3; n++) await unpriced()
      await insertUsage(app, app.projectId, [tokenUse({ cost: 1 })])
      assert.equal(await code(ask()), 200)
      await insertUsage(app, app.projectId, [
        { meter_type: 'storage', provider: 'platform', model: 'gb-day', cost_usd: '5', tokens: 0, components: [] },
      ])
      assert.equal(await code(ask()), 'QUOTA_EXCEEDED')
      await app.admin.delete(`/quotas/${made.id}`)
      const storage = await quota({ metric: 'cost_usd', limit: 100, meter_type: 'storage' })
      assert.equal((await measured(storage.id)).observed_value, 5)
      assert.equal(await code(ask()), 200)
    })

    it('do not count embeddings into the verdict', async () => {
      await quota({ metric: 'cost_usd', limit: 5 })
      for (let n = 0; n < 4; n++) await used(10, { source: 'embedding' })
      assert.equal(await code(ask()), 200)
    })
  })

  it('refuse a queued turn when it starts, which leaves a failed generation without steps or usage', async () => {
    const { id } = await quota({ limit: 1_000_000 })
    const { id: sessionId } = await session(null, { auto_generate: true, message_delay_seconds: 1 })
    const message = await app.key.post(`/sessions/${sessionId}/messages`, { message: 'hello' })
    assert.equal(message.status, 201)
    await used(1_000_000)
    const failed = await eventually(async () => {
      const { body } = await app.key.get(`/generations/${message.body.generation_id}`)
      return body.status === 'failed' && body
    })
    assert.equal(failed.error.code, 'QUOTA_EXCEEDED')
    assert.equal(failed.error.meta.quota_id, id)
    assert.equal(failed.usage, null)
    const of = await app.key.get(`/usage/events?generation_id=${failed.id}`)
    assert.equal(of.body.total, 0)
    // A message is kept even when its turn is refused; a turn that is requested is refused immediately.
    const kept = await app.key.post(`/sessions/${sessionId}/messages`, { message: 'again' })
    assert.equal(kept.status, 201)
    assert.equal((await app.key.post(`/sessions/${sessionId}/generate`, {})).status, 429)
  })

  it('refuse decisions and retries as they do turns, and a paused project before', async () => {
    await quota({ limit: 1 })
    await used(1)
    const decider = await app.key.post('/deciders', {
      name: 'router',
      agent_id: app.agentId,
      questions: [{ name: 'urgent', type: 'predicate', instructions: 'Is it urgent?' }],
    })
    assert.equal(decider.status, 201, JSON.stringify(decider.body))
    const asked = await app.key.post(`/deciders/${decider.body.id}/decisions`, { input: { text: 'x' } })
    assert.deepEqual([asked.status, asked.body.error?.code], [429, 'QUOTA_EXCEEDED'])
    assert.equal((await app.key.get('/decisions')).body.total, 0)
    await app.admin.post(`/projects/${app.projectId}/pause`, {})
    try {
      assert.equal(await code(ask()), 'PROJECT_PAUSED')
    } finally {
      await app.admin.post(`/projects/${app.projectId}/resume`, {})
    }
  })

  describe('in a project that requires prices', () => {
    const price = (component: string) =>
      app.admin.put(`/projects/${app.projectId}/prices`, {
        prices: [
          {
            provider: 'custom',
            model: 'double-1',
            component,
            unit: 'token',
            unit_price: 0.001,
            effective_from: '2026-01-01T00:00:00Z',
          },
        ],
      })
    const requires = (require_priced_model: boolean) =>
      app.admin.patch(`/projects/${app.projectId}`, { require_priced_model })
    after(() => requires(false))

    it('are turns refused on a model of which a price is missing, before anything is written', async () => {
      const { body, status } = await requires(true)
      assert.deepEqual([status, body.require_priced_model], [200, true])
      const before = await generations()
      const refused = await ask()
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'MODEL_NOT_PRICED'])
      const row = (model: string, component: string) => ({ provider: 'custom', model, component })
      assert.deepEqual(refused.body.error.meta.unpriced_rows, [
        row('double-1', 'input_tokens'),
        row('double-1', 'output_tokens'),
      ])
      const { id } = await session(null)
      assert.deepEqual([(await reply(id)).body.error.code], ['MODEL_NOT_PRICED'])
      assert.equal((await price('input_tokens')).status, 200)
      assert.deepEqual((await ask()).body.error.meta.unpriced_rows, [row('double-1', 'output_tokens')])
      assert.equal(await generations(), before)
      assert.equal((await price('output_tokens')).status, 200)
      assert.equal(await code(ask()), 200)
      assert.equal((await reply(id)).status, 200)
    })

    it('every target of a route must have them', async () => {
      await requires(true)
      const route = async (...models: string[]) => {
        const targets = models.map(model => ({ ai_provider_id: app.providerId, model }))
        const made = await app.key.post('/model-routes', { name: models.join(), targets })
        assert.equal(made.status, 201, JSON.stringify(made.body))
        return app.agent({ ai_provider_id: null, model_route_id: made.body.id })
      }
      assert.equal(await code(ask(await route('double-1'))), 200)
      const refused = await ask(await route('double-1', 'double-2'))
      assert.deepEqual(
        refused.body.error.meta.unpriced_rows.map(({ model }: any) => model),
        ['double-2', 'double-2'],
      )
    })
  })

  describe('that reserve', () => {
    it('are of what turns use', async () => {
      const refused = async (fields: object) => {
        const base = { project_id: app.projectId, scope: 'project', window: 'rolling_24h', limit: 5, reserve: true }
        const { status, body } = await app.admin.post('/quotas', { ...base, ...fields })
        return status === 400 && body.error.meta.problems[0].path
      }
      assert.equal(await refused({ metric: 'requests' }), 'reserve')
      assert.equal(await refused({ metric: 'cost_usd', meter_type: 'storage' }), 'reserve')
      const made = await quota({ limit: 5, metric: 'cost_usd', meter_type: 'storage' })
      assert.equal((await app.admin.patch(`/quotas/${made.id}`, { reserve: true })).status, 400)
    })

    const burst = (count: number) => Promise.all(Array.from({ length: count }, () => code(ask())))
    /** What one turn uses: all say the same. */
    const each = async () => {
      assert.equal(await code(ask()), 200)
      return (await app.key.get('/usage/events?limit=1')).body.data[0].components.reduce(
        (sum: number, { quantity }: any) => sum + quantity,
        0,
      )
    }

    it('never run past their limit under 100 concurrent turns', async () => {
      const size = await each()
      const made = await quota({ limit: size * 20 + 1, reserve: true })
      const outcomes = await burst(100)
      await settled()
      const { observed_value } = await measured(made.id)
      assert.ok(observed_value <= made.limit, `${observed_value} of ${made.limit}`)
      assert.ok(outcomes.includes(200) && outcomes.includes('QUOTA_EXCEEDED'))
      // A turn refused because of active ones may start once they are done.
      while ((await code(ask())) === 200);
      assert.equal((await measured(made.id)).observed_value, size * 20)
    })

    it('start the first turns, whose usage is unpredictable, one by one', async () => {
      const made = await quota({ limit: 1_000_000, reserve: true })
      const outcomes = await burst(20)
      await settled()
      assert.ok(outcomes.includes(200))
      assert.ok((await measured(made.id)).observed_value <= made.limit)
    })

    it('exceed it without reservations by no more than the calls in flight', async () => {
      const size = await each()
      const made = await quota({ limit: size * 20 })
      const outcomes = await burst(100)
      await settled()
      const { observed_value } = await measured(made.id)
      const passed = outcomes.filter(outcome => outcome === 200).length
      assert.equal(observed_value, size * (passed + 1))
      assert.ok(observed_value >= made.limit && observed_value <= made.limit + size * 99, `${observed_value}`)
    })
  })
})
