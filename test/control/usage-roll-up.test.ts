import assert from 'node:assert/strict'
import { sumsMatchEvents } from '#control/usage/rebuild.ts'
import { rollUpUsage } from '#control/usage/roll-up.ts'
import { systemClock } from '#core/base/clock.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { forSuite } from '../support/suite.ts'
import { insertUsage, tokenUse } from '../support/usage.ts'

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
const GROUPS = [
  'model',
  'ai_provider',
  'agent',
  'agent_version',
  'orchestration_run',
  'day',
  'meter_type',
  'actor',
  'session',
  'source',
  'trigger',
  'action',
  'publisher_project',
]

describe('the roll-up of usage', function () {
  this.timeout(120_000)
  const app = forSuite(() =>
    startAgentApp({
      env: { USAGE_ROLLUP_DAYS: '60' },
      actions: ['agents:*', 'usage:*', 'quotas:*', 'actors:*'],
      clock: { now: () => time ?? systemClock.now() },
    }),
  )
  /** Time of the application; null for the present. */
  let time: Date | null = null
  const rows = async () => (await app.rows('select from usage_events')).length
  const rollUp = () => rollUpUsage(app.services, new AbortController().signal)
  const old = Math.floor((Date.now() - 90 * DAY_MS) / HOUR_MS) * HOUR_MS

  /** Usage of some hours, in every dimension, priced, partly priced and not, with more of an hour than a batch has. */
  async function useMuch(): Promise<void> {
    const pick = <T>(values: readonly T[], n: number): T => values[n % values.length]
    const uses = Array.from({ length: 2700 }, (_, n) => ({
      ...tokenUse({ cost: pick([0.1, 0.25, null], n), input: 100 + (n % 7), cached: pick([0, 30], n) }),
      model: pick(['m', 'n'], n >> 1),
      agent_id: pick(['agent_1', 'agent_2', null], n),
      actor_id: pick(['actor_1', null, 'actor_2'], n >> 2),
      session_id: pick(['session_1', null], n),
      orchestration_run_id: pick([null, null, 'orch_run_1'], n >> 1),
      node_id: 'draft',
      trigger_id: pick([null, 'trigger_1'], n >> 3),
      action_id: pick([null, 'greeting'], n >> 2),
      source: pick([null, 'eval', 'embedding'], n),
      generation_id: `gen_${n}`,
      trace_id: `trace_${n}`,
      publisher_project_id: pick([null, 'project_other'], n >> 4),
      created_at: new Date(old + (n < 2300 ? n * 700 : (n - 2300) * 60_000)).toISOString(),
    }))
    const seconds = Array.from({ length: 50 }, (_, n) => ({
      meter_type: 'compute_execution',
      provider: 'platform',
      model: 'node',
      cost_usd: '0.0001',
      tokens: 0,
      orchestration_run_id: 'orch_run_1',
      node_id: n % 2 ? 'draft' : 'send',
      components: [
        {
          component: 'seconds',
          quantity: 0.125 + n,
          unit: 'second',
          billable: true,
          unit_price: 0.0001,
          cost_usd: 0.0001,
          price_id: 'price_2',
        },
      ],
      created_at: new Date(old + n * 60_000).toISOString(),
    }))
    const fraction = { ...tokenUse({ cost: 0.1, input: 0.5 }), tokens: 50, created_at: new Date(old).toISOString() }
    await insertUsage(app, app.projectId, [...uses, ...seconds, fraction, fraction])
  }

  /** Every report of the project, over all time and over whole hours. */
  async function reports(): Promise<unknown> {
    const span = `&from=${new Date(old).toISOString()}&to=${new Date(old + 30 * HOUR_MS - 1).toISOString()}`
    const read = async (path: string) => {
      const { status, body } = await app.key.get(path)
      assert.equal(status, 200, JSON.stringify(body))
      return body
    }
    const found: Record<string, unknown> = {}
    for (const group of GROUPS)
      for (const more of [
        '',
        span,
        '&actor_id=actor_1',
        '&session_id=session_1',
        '&agent_id=agent_2&source=eval',
        '&trigger_id=trigger_1',
        '&action_id=greeting',
        '&orchestration_run_id=orch_run_1',
        '&model=n&meter_type=llm_tokens',
      ]) {
        const path = `/usage/aggregate?group_by=${group}&limit=100${more}`
        found[path] = await read(path)
      }
    for (const path of [
      `/usage/timeseries?interval=hour${span}&group_by=actor`,
      `/usage/timeseries?interval=hour${span}&group_by=orchestration_run`,
      `/usage/timeseries?interval=day${span}&group_by=session`,
      `/usage/timeseries?interval=day${span}&group_by=model`,
    ])
      found[path] = await read(path)
    const { line_items, ...receipt } = await read('/usage/receipt?orchestration_run_id=orch_run_1')
    found.receipt = receipt
    found.cost = line_items.reduce((sum: number, { cost_usd }: any) => sum + (cost_usd ?? 0) * 1e6, 0)
    return found
  }

  it('changes no report, invoice, quota or sum, and saves rows', async () => {
    await useMuch()
    const { status, body: turn } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
    assert.equal(status, 200, JSON.stringify(turn))
    await insertUsage(
      app,
      app.projectId,
      [1, 2, 3].map(n => ({
        ...tokenUse({ cost: 0.1 }),
        agent_id: app.agentId,
        generation_id: turn.id,
        created_at: new Date(old + n).toISOString(),
      })),
    )
    const quota = await app.admin.post('/quotas', {
      project_id: app.projectId,
      scope: 'project',
      metric: 'tokens',
      window: 'calendar_month',
      limit: 1e9,
      mode: 'monitor',
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    const spent = async () =>
      app.rows(
        'select scope, ref, sum(tokens) as tokens, sum(cost_usd) as cost, sum(metered) as metered from usage_sums group by 1, 2 order by 1, 2',
      )
    const receipt = async () => {
      const { body } = await app.key.get(`/usage/receipt?generation_id=${turn.id}`)
      assert.equal(body.line_items.length, 4)
      return body
    }
    const before = { reports: await reports(), spent: await spent(), receipt: await receipt(), rows: await rows() }
    const saved = await rollUp()
    assert.equal(await rows(), before.rows - saved)
    assert.ok(saved > before.rows * 0.6, `${saved} of ${before.rows}`)
    assert.deepEqual(await reports(), before.reports)
    assert.deepEqual(await spent(), before.spent)
    assert.deepEqual(await receipt(), before.receipt)
    assert.equal((await app.key.get('/usage/events?limit=1')).body.total, before.rows - saved)
    const { body } = await app.key.get('/usage/events?orchestration_run_id=orch_run_1&meter_type=compute_execution')
    assert.deepEqual(body.data.map(({ node_id, event_count }: any) => [node_id, event_count]).sort(), [
      ['draft', 25],
      ['send', 25],
    ])
    // The sums can still be rebuilt from the remaining rows.
    assert.ok(
      await sumsMatchEvents(app.pool, {
        project_id: app.projectId,
        from: new Date(old),
        to: new Date(old + 2 * DAY_MS),
      }),
    )
    assert.equal(await rollUp(), 0)
    // Usage of a turn goes into the sums once its record is gone.
    await app.admin.patch(`/projects/${app.projectId}`, { trace_retention_days: 3650 })
    assert.equal(await rollUp(), 0)
    await app.rows('delete from generations where id = $1', [turn.id])
    const afterDeletion = await reports()
    assert.equal(await rollUp(), 2)
    assert.deepEqual(await reports(), afterDeletion)
  })

  it('changes no quota in a window with usage that is rolled up', async () => {
    const actor = (await app.key.post('/actors', { name: 'one' })).body.id
    // Half past twelve in the middle of a month.
    const month = new Date(old)
    const day = Date.UTC(month.getUTCFullYear(), month.getUTCMonth() - 1, 15)
    const now = new Date(day + 12.5 * HOUR_MS)
    const uses = Array.from({ length: 600 }, (_, n) => ({
      ...tokenUse({ cost: n % 3 ? 0.25 : null, input: 100 + (n % 7) }),
      agent_id: n % 2 ? app.agentId : 'agent_1',
      actor_id: n % 5 ? actor : null,
      generation_id: `gen_quota_${n}`,
      // A third in the hour, a third on the day, a third in the month.
      created_at: new Date(day + [12, n % 12, -24 * (1 + (n % 9))][n % 3] * HOUR_MS + n * 2000).toISOString(),
    }))
    await insertUsage(app, app.projectId, uses)
    // Of the test before.
    for (const { id } of (await app.admin.get(`/quotas?project_id=${app.projectId}`)).body.data)
      await app.admin.delete(`/quotas/${id}`)
    const quotas: string[] = []
    for (const scope of [{ scope: 'project' }, { scope: 'agent', scope_ref: app.agentId }, { scope: 'actor' }])
      for (const metric of ['tokens', 'cost_usd'])
        for (const window of ['rolling_1h', 'rolling_24h', 'calendar_month']) {
          const fields = { project_id: app.projectId, ...scope, metric, window, limit: 1e9, mode: 'enforce' }
          const { status, body } = await app.admin.post('/quotas', fields)
          assert.equal(status, 201, JSON.stringify(body))
          quotas.push(body.id)
        }
    const atThatTime = async <T>(work: () => Promise<T>): Promise<T> => {
      time = now
      try {
        return await work()
      } finally {
        time = null
      }
    }
    const measured = () =>
      atThatTime(async () => {
        const found = []
        for (const id of quotas) found.push((await app.admin.get(`/quotas/${id}/usage`)).body)
        return found
      })
    const before = await measured()
    for (const { observed_value, actors } of before)
      assert.ok(observed_value > 0 || actors?.length > 0, JSON.stringify(before))
    const refusal = () => atThatTime(() => app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'x' }))
    const isRefused = async () => {
      const { status, body } = await refusal()
      return status === 429 && body.error.code === 'QUOTA_EXCEEDED'
    }
    const [hour] = quotas
    await app.admin.patch(`/quotas/${hour}`, { limit: before[0].observed_value })
    const limited = await measured()
    assert.equal(await isRefused(), true)
    // The usage is older than the last roll-up, which a sweep does not read again.
    await app.rows('delete from usage_roll_ups')
    assert.ok((await rollUp()) > 400)
    assert.deepEqual(await measured(), limited)
    assert.equal(await isRefused(), true)
    await app.admin.patch(`/quotas/${hour}`, { limit: before[0].observed_value + 1 })
    assert.equal(await isRefused(), false)
  })

  it('leaves recent usage, and does nothing by default', async () => {
    const recent = [1, 2].map(n => ({
      ...tokenUse({ cost: 0.1 }),
      created_at: new Date(Date.now() - 59 * DAY_MS + n).toISOString(),
    }))
    await insertUsage(app, app.projectId, recent)
    assert.equal(await rollUp(), 0)
    const config = { ...app.services.config, USAGE_ROLLUP_DAYS: 0 }
    const older = [1, 2].map(n => ({
      ...tokenUse({ cost: 0.1 }),
      agent_id: 'agent_9',
      created_at: new Date(old + n).toISOString(),
    }))
    await insertUsage(app, app.projectId, older)
    assert.equal(await rollUpUsage({ ...app.services, config }, new AbortController().signal), 0)
    assert.equal(await rollUp(), 0)
  })
})
