import assert from 'node:assert/strict'
import { describe, it } from 'mocha'
import { newId } from '#core/base/ids.ts'
import { startApp, type TestProject } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { insertUsage, tokenUse } from '../support/usage.ts'

describe('usage reports', () => {
  const app = forSuite(startApp)

  /** A key that may only read reports. */
  const reader = () =>
    app.projectWith(['usage:GetAggregate', 'usage:GetReceipt', 'usage:ExportUsageEvents', 'usage:ListUsageEvents'])

  /** Generations are of one project. */
  const gen = ({ id }: { id: string }, n: number) => `gen_${n}_${id}`
  const at = (text: string) => `2026-07-${text}:00.000Z`

  /** Four turns and a tool call over two days, two sessions, two models. */
  async function filled(): Promise<TestProject> {
    const project = await reader()
    const turn = (fields: { cost: number | null } & Record<string, unknown>) =>
      tokenUse({ provider: 'openai', ai_provider_id: 'aip_1', ...fields })
    await insertUsage(app, project.id, [
      turn({
        model: 'm1',
        agent_id: 'agent_1',
        actor_id: 'actor_1',
        session_id: 'sess_1',
        generation_id: gen(project, 1),
        created_at: at('01T10:15'),
        cost: 0.1,
      }),
      turn({
        model: 'm1',
        served_model: 'm1-2026',
        agent_id: 'agent_1',
        actor_id: 'actor_2',
        session_id: 'sess_2',
        generation_id: gen(project, 2),
        created_at: at('01T10:45'),
        cost: 0.2,
      }),
      turn({
        model: 'm2',
        served_model: 'm2-2026',
        agent_id: 'agent_2',
        session_id: 'sess_2',
        generation_id: gen(project, 3),
        created_at: at('01T23:59'),
        cost: null,
        source: 'decider',
      }),
      turn({
        model: 'm1',
        served_model: 'm1-2026',
        service_tier: 'priority',
        agent_id: 'agent_2',
        generation_id: gen(project, 4),
        created_at: at('02T00:00'),
        cost: 0.4,
        input: 1000,
        output: 7,
        cached: 3,
      }),
      {
        meter_type: 'tool_execution',
        provider: 'platform',
        model: 'tool-call',
        generation_id: gen(project, 1),
        created_at: at('02T05:30'),
        cost_usd: '0.0000000001',
        tokens: 0,
        components: [
          {
            component: 'tool_call',
            quantity: 1,
            unit: 'call',
            billable: true,
            unit_price: 1e-10,
            cost_usd: 1e-10,
            price_id: 'price_9',
          },
        ],
      },
    ])
    return project
  }

  const aggregate = async ({ key }: TestProject, query = '') => {
    const { status, body } = await key.get(`/usage/aggregate?${query}`)
    assert.equal(status, 200, JSON.stringify(body))
    return body
  }
  const keyed = (body: any) => Object.fromEntries(body.groups.data.map((group: any) => [group.key, group.cost_usd]))

  it('reach to the last time that there is', async () => {
    const project = await filled()
    const last = '9999-12-31T23:59:59.999Z'
    assert.equal((await aggregate(project, `to=${last}`)).totals.event_count, 5)
    assert.equal((await aggregate(project, `from=${last}&group_by=day`)).totals.event_count, 0)
    const { status, body } = await project.key.get(
      `/usage/timeseries?interval=month&from=9999-11-01T00:00:00Z&to=${last}&group_by=model`,
    )
    assert.deepEqual([status, body.points?.length], [200, 2], JSON.stringify(body))
  })

  const part = (component: string, quantity: number, cost_usd: number | null, unpriced_quantity: number) => ({
    component,
    unit: 'token',
    quantity,
    cost_usd,
    unpriced_quantity,
    unpriced_share: unpriced_quantity / quantity,
  })

  it('add up exactly, with the sum of each component', async () => {
    const body = await aggregate(await filled())
    assert.deepEqual(body.totals, {
      cost_usd: 0.7000000001,
      input_tokens: 1303,
      uncached_input_tokens: 1300,
      output_tokens: 157,
      cached_tokens: 3,
      cache_write_tokens: 0,
      reasoning_tokens: 0,
      event_count: 5,
      unpriced_tokens: 260,
      unpriced_share: 260 / 1460,
      components: [
        part('cached_tokens', 3, null, 3),
        part('input_tokens', 1300, 0.7, 100),
        part('output_tokens', 157, null, 157),
        { ...part('tool_call', 1, 1e-10, 0), unit: 'call' },
      ],
    })
    assert.deepEqual(body.groups, { data: [], total: 0, limit: 50, offset: 0 })
    assert.deepEqual(body.filters, {
      session_id: null,
      actor_id: null,
      agent_id: null,
      ai_provider_id: null,
      orchestration_run_id: null,
      orchestration_id: null,
      generation_id: null,
      trace_id: null,
      meter_type: null,
      model: null,
      source: null,
      trigger_id: null,
      action_id: null,
    })
  })

  it('group by every dimension, the dearest first, with a separate group for usage without the dimension', async () => {
    const project = await filled()
    const of = async (group: string) => keyed(await aggregate(project, `group_by=${group}`))
    const models = await aggregate(project, 'group_by=model')
    assert.deepEqual(
      models.groups.data.map(({ key, ai_provider_id, cost_usd }: any) => [key, ai_provider_id, cost_usd]),
      [
        ['m1', 'aip_1', 0.7],
        ['tool-call', null, 1e-10],
        ['m2', 'aip_1', null],
      ],
    )
    assert.deepEqual(await of('day'), { '2026-07-02': 0.4000000001, '2026-07-01': 0.3 })
    assert.deepEqual(await of('agent'), { agent_2: 0.4, agent_1: 0.3, null: 1e-10 })
    assert.deepEqual(await of('ai_provider'), { aip_1: 0.7, null: 1e-10 })
    assert.deepEqual(await of('meter_type'), { llm_tokens: 0.7, tool_execution: 1e-10 })
    assert.deepEqual(await of('actor'), { null: 0.4000000001, actor_2: 0.2, actor_1: 0.1 })
    assert.deepEqual(await of('session'), { null: 0.4000000001, sess_2: 0.2, sess_1: 0.1 })
    assert.deepEqual(await of('source'), { null: 0.7000000001, decider: null })
    for (const group of ['trigger', 'action', 'orchestration_run', 'publisher_project'])
      assert.deepEqual(await of(group), { null: 0.7000000001 })
    assert.deepEqual(await of('served_model'), { 'm1-2026': 0.6, null: 0.1000000001, 'm2-2026': null })
    assert.deepEqual(await of('service_tier'), { priority: 0.4, null: 0.3000000001 })
    const [actors, sessions] = [
      await aggregate(project, 'group_by=actor'),
      await aggregate(project, 'group_by=session'),
    ]
    for (const { groups, totals } of [models, actors, sessions]) {
      const events = groups.data.reduce((sum: number, { event_count }: any) => sum + event_count, 0)
      assert.equal(events, totals.event_count)
    }
  })

  it('are narrowed by filters and bounds, never widened', async () => {
    const project = await filled()
    const cost = async (query: string) => (await aggregate(project, query)).totals.cost_usd
    const count = async (query: string) => (await aggregate(project, query)).totals.event_count
    assert.equal(await cost('session_id=sess_2'), 0.2)
    assert.equal(await cost('agent_id=agent_2'), 0.4)
    assert.equal(await cost('model=m1&agent_id=agent_1'), 0.3)
    assert.equal(await count(`generation_id=${gen(project, 1)}`), 2)
    assert.equal(await count('source=decider'), 1)
    assert.equal(await count('meter_type=llm_tokens'), 4)
    for (const name of [
      'session_id',
      'actor_id',
      'agent_id',
      'ai_provider_id',
      'orchestration_run_id',
      'orchestration_id',
      'generation_id',
      'trace_id',
      'model',
      'source',
      'trigger_id',
      'action_id',
    ])
      assert.equal(await count(`${name}=unknown`), 0, name)
    // Within an hour, over parts of hours, over whole hours, to the millisecond.
    assert.equal(await cost(`from=${at('01T10:15')}&to=${at('01T10:44')}`), 0.1)
    assert.equal(await cost(`from=${at('01T10:16')}`), 0.6000000001)
    assert.equal(await cost(`from=2026-07-01T10:15:00.001Z&to=${at('02T00:00')}`), 0.6)
    assert.equal(await cost(`to=2026-07-01T23:59:59.999Z`), 0.3)
    assert.equal(await cost('from=2026-07-02'), 0.4000000001)
    assert.equal(await count('from=2026-07-03'), 0)
  })

  it('refuse unknown dimensions, and answer no other caller', async () => {
    const project = await filled()
    for (const query of [
      'foo=1',
      'group_by=colour',
      'include=everything',
      'from=yesterday',
      'sesion_id=x',
      'meter_type=tokens',
    ])
      assert.equal((await project.key.get(`/usage/aggregate?${query}`)).status, 400, query)
    assert.equal((await app.admin.get('/usage/aggregate')).status, 400)
    const stranger = await reader()
    assert.equal((await stranger.key.get(`/usage/aggregate?project_id=${project.id}`)).status, 403)
    const other = await app.projectWith(['actors:ListActors'])
    for (const path of [
      'aggregate',
      'timeseries?interval=day&from=2026-07-01&to=2026-07-02',
      `receipt?generation_id=${gen(project, 1)}`,
      'export',
    ])
      assert.equal((await other.key.get(`/usage/${path}`)).status, 403, path)
  })

  it('count the distinct values, whatever the page', async () => {
    const body = await aggregate(await filled(), 'group_by=session&include=distinct&limit=1')
    assert.equal(body.groups.total, 3)
    assert.equal(body.groups.data.length, 1)
    assert.deepEqual(body.totals.distinct, {
      generations: 4,
      traces: 0,
      orchestration_runs: 0,
      agents: 2,
      actors: 2,
      sessions: 2,
      ai_providers: 1,
    })
  })

  it('compare projects for admins only', async () => {
    const project = await filled()
    const { status, body } = await app.admin.get('/usage/aggregate?group_by=project&limit=100')
    assert.equal(status, 200)
    assert.equal(body.project_id, null)
    assert.equal(keyed(body)[project.id], 0.7000000001)
    const user = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['usage:*'], resource: ['*'] }] }])
    assert.equal((await user.get('/usage/aggregate?group_by=project')).status, 400)
    assert.deepEqual(keyed(await aggregate(project, 'group_by=project')), { [project.id]: 0.7000000001 })
  })

  it('make a point of each interval, also of one without usage', async () => {
    const project = await filled()
    const { status, body } = await project.key.get(
      `/usage/timeseries?interval=day&from=${at('01T10:20')}&to=2026-07-03&group_by=model`,
    )
    assert.equal(status, 200, JSON.stringify(body))
    assert.deepEqual(
      body.points.map(({ start, totals, groups }: any) => [
        start,
        totals.event_count,
        groups.map(({ key }: any) => key),
      ]),
      [
        ['2026-07-01T00:00:00.000Z', 2, ['m1', 'm2']],
        ['2026-07-02T00:00:00.000Z', 2, ['m1', 'tool-call']],
        ['2026-07-03T00:00:00.000Z', 0, []],
      ],
    )
    const hours = (
      await project.key.get(
        `/usage/timeseries?interval=hour&from=${at('01T10:00')}&to=${at('01T11:00')}&session_id=sess_1`,
      )
    ).body
    assert.deepEqual(
      hours.points.map(({ totals }: any) => totals.cost_usd),
      [0.1, null],
    )
    const months = (await project.key.get('/usage/timeseries?interval=month&from=2026-06-15&to=2026-08-15')).body
    assert.deepEqual(
      months.points.map(({ totals }: any) => totals.event_count),
      [0, 5, 0],
    )
    for (const query of [
      'interval=hour&from=2026-01-01&to=2026-07-01',
      'interval=day&from=2026-01-01',
      'interval=year&from=2026-01-01&to=2026-07-01',
    ])
      assert.equal((await project.key.get(`/usage/timeseries?${query}`)).status, 400, query)
  })

  it('bill a generation line by line, also when it is gone', async () => {
    const project = await filled()
    const { status, body } = await project.key.get(`/usage/receipt?generation_id=${gen(project, 1)}`)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.currency, 'USD')
    assert.equal(body.generation_id, gen(project, 1))
    assert.deepEqual(
      body.line_items.map(({ meter_type, model, cost_usd, components }: any) => [
        meter_type,
        model,
        cost_usd,
        components[0].price_id,
      ]),
      [
        ['llm_tokens', 'm1', 0.1, 'price_1'],
        ['tool_execution', 'tool-call', 1e-10, 'price_9'],
      ],
    )
    assert.deepEqual(body.by_meter_type, [
      { meter_type: 'llm_tokens', cost_usd: 0.1 },
      { meter_type: 'tool_execution', cost_usd: 1e-10 },
    ])
    assert.deepEqual(
      body.components.map(({ component, unpriced_quantity }: any) => [component, unpriced_quantity]),
      [
        ['input_tokens', 0],
        ['output_tokens', 50],
        ['tool_call', 0],
      ],
    )
    assert.equal(body.totals.cost_usd, 0.1000000001)
    assert.equal(body.totals.input_tokens, 100)
    for (const query of ['', `generation_id=${gen(project, 1)}&orchestration_run_id=orch_run_1`])
      assert.equal((await project.key.get(`/usage/receipt?${query}`)).status, 400)
    const missing = await project.key.get('/usage/receipt?generation_id=gen_unknown')
    assert.deepEqual([missing.status, missing.body.error.code], [404, 'GENERATION_NOT_FOUND'])
    const run = await project.key.get('/usage/receipt?orchestration_run_id=orch_run_1')
    assert.deepEqual([run.status, run.body.error.code], [404, 'ORCHESTRATION_RUN_NOT_FOUND'])
    const stranger = await reader()
    const generation_id = app.inCellOf(stranger.id, () => newId('gen'))
    await insertUsage(app, stranger.id, [tokenUse({ generation_id, cost: 1 })])
    assert.equal((await project.key.get(`/usage/receipt?generation_id=${generation_id}`)).status, 404)
    assert.equal((await app.admin.get(`/usage/receipt?generation_id=${generation_id}`)).status, 200)
  })

  it('export events oldest first, and end with a newline', async () => {
    const project = await reader()
    const uses = Array.from({ length: 1100 }, (_, n) =>
      tokenUse({ generation_id: `gen_x${n}`, cost: 0.001, agent_id: n % 2 ? 'agent_1' : 'agent_2' }),
    )
    await insertUsage(app, project.id, uses)
    const { status, body } = await project.key.get('/usage/export')
    assert.equal(status, 200)
    assert.ok(body.endsWith('\n'))
    const lines = body
      .trimEnd()
      .split('\n')
      .map((line: string) => JSON.parse(line))
    assert.equal(new Set(lines.map(({ id }: any) => id)).size, 1100)
    assert.ok(lines.every(({ created_at }: any, n: number) => n === 0 || created_at >= lines[n - 1].created_at))
    const half = (await project.key.get('/usage/export?agent_id=agent_1')).body.trimEnd().split('\n')
    assert.equal(half.length, 550)
    assert.equal((await project.key.get('/usage/export?agent=agent_1')).status, 400)
    assert.equal((await app.admin.get('/usage/export')).status, 400)
  })
})
