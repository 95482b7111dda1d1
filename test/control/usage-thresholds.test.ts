import assert from 'node:assert/strict'
import { recordUsage } from '#control/usage/meter.ts'
import { rebuildSums } from '#control/usage/rebuild.ts'
import { manualClock } from '#core/base/clock.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, startApp, type TestProject } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { usageOf, useOf } from './usage-support.ts'

const DAY_MS = 86_400_000

describe('usage thresholds', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'], clock }))
  let project: TestProject
  const clock = manualClock()
  beforeEach(async () => {
    clock.set(new Date())
    project = await app.projectWith(['usage:*', 'events:ListEvents', 'projects:ManageProjectPrices'])
  })

  const made = (fields: object): Promise<any> =>
    createdBy(project.key, '/usage/thresholds', { metric: 'tokens', window: 'calendar_month', ...fields })
  const use = (quantity: number) =>
    recordUsage(app.servicesOf(project.id), [
      useOf(project.id, { components: [{ component: 'input_tokens', quantity, unit: 'token', billable: true }] }),
    ])
  const crossed = async (): Promise<any[]> =>
    (await project.key.get('/events?event=usage_thresholds.crossed')).body.data.map(({ data }: any) => data).reverse()
  /** How often it was announced, once everything that was to be compared has been. */
  const announced = async () => {
    await compared()
    return (await crossed()).length
  }
  const compared = async () => {
    const waits = () =>
      app.pool.oneFirst(
        rawQuery(
          "select count(*)::int as count from pgboss.job where name = 'usage.check_thresholds' and state < 'completed'",
        ),
      )
    await eventually(async () => (await waits()) === 0)
  }

  it('are at most 200 per project, under any number of concurrent creates', async () => {
    const more = () => project.key.post('/usage/thresholds', { metric: 'tokens', window: 'rolling_24h', threshold: 1 })
    for (let n = 0; n < 190; n += 38) await Promise.all(Array.from({ length: 38 }, more))
    const statuses = (await Promise.all(Array.from({ length: 20 }, more))).map(({ status }) => status)
    assert.equal(statuses.filter(status => status === 201).length, 10)
    assert.equal((await more()).body.error.meta.problems[0].code, 'LIMIT_REACHED')
  })

  it('are announced once a month, under any number of concurrent uses', async () => {
    const threshold = await made({ threshold: 100 })
    await use(99)
    assert.equal(await announced(), 0)
    await Promise.all(Array.from({ length: 10 }, () => use(10)))
    await eventually(async () => (await crossed()).length > 0)
    await use(500)
    assert.equal(await announced(), 1)
    const [data] = await crossed()
    const month = clock.now().toISOString().slice(0, 7)
    assert.deepEqual(
      [data.id, data.threshold_id, data.window_key, data.fired_window_key, data.metric, data.threshold],
      [threshold.id, threshold.id, month, month, 'tokens', 100],
    )
    assert.ok(data.observed_value >= 100)
    assert.ok((await project.key.get(`/usage/thresholds/${threshold.id}`)).body.last_fired_at)

    clock.advance(32 * DAY_MS)
    await app.pool.query(rawQuery('alter table usage_events disable trigger usage_events_frozen'))
    await app.pool.query(
      rawQuery('update usage_events set created_at = $1 where project_id = $2', [
        clock.now().toISOString(),
        project.id,
      ]),
    )
    await app.pool.query(rawQuery('alter table usage_events enable trigger usage_events_frozen'))
    const span = { project_id: project.id, from: new Date(0), to: new Date(clock.now().getTime() + DAY_MS) }
    await app.servicesOf(project.id).write(tx => rebuildSums(tx, span))
    await use(1)
    await eventually(async () => (await crossed()).length === 2)
  })

  it('of a rolling day fire again after the value has fallen below nine tenths', async () => {
    await made({ window: 'rolling_24h', threshold: 100 })
    await use(100)
    await eventually(async () => (await crossed()).length === 1)
    assert.equal((await crossed())[0].window_key, null)
    await use(50)
    assert.equal(await announced(), 1)
    // The usage is more than a day ago.
    clock.advance(DAY_MS + 60_000)
    await use(1)
    assert.equal(await announced(), 1)
    clock.set(new Date())
    await use(1)
    await eventually(async () => (await crossed()).length === 2)
  })

  it('of money compare priced usage, exactly', async () => {
    await made({ metric: 'cost_usd', threshold: 0.3 })
    const price = { provider: 'openai', model: 'gpt-test', component: 'input_tokens', unit: 'token', unit_price: 0.1 }
    const reply = await project.key.put(`/projects/${project.id}/prices`, {
      prices: [{ ...price, effective_from: '2020-01-01T00:00:00Z' }],
    })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    await use(1)
    await use(1)
    assert.equal(await announced(), 0)
    await use(1)
    await eventually(async () => (await crossed()).length === 1)
    assert.equal((await crossed())[0].observed_value, 0.3)
  })

  it('are made, read and deleted by who may, and never changed', async () => {
    const { id, ...shown } = await made({ threshold: 5 })
    assert.deepEqual(Object.keys(shown).sort(), [
      'created_at',
      'fired_window_key',
      'last_fired_at',
      'metric',
      'project_id',
      'threshold',
      'window',
    ])
    assert.equal((await project.key.patch(`/usage/thresholds/${id}`, { threshold: 6 })).status, 404)
    for (const wrong of [
      { threshold: 0 },
      { threshold: 1, window: 'rolling_1h' },
      { threshold: 1, metric: 'requests' },
    ])
      assert.equal(
        (await project.key.post('/usage/thresholds', { metric: 'tokens', window: 'rolling_24h', ...wrong })).status,
        400,
      )
    const reader = await app.projectWith(['usage:ListThresholds'])
    assert.equal((await reader.key.get('/usage/thresholds')).body.total, 0)
    assert.equal((await reader.key.get(`/usage/thresholds/${id}`)).status, 404)
    const wanted = { metric: 'tokens', window: 'rolling_24h', threshold: 1 }
    assert.equal((await reader.key.post('/usage/thresholds', wanted)).status, 403)
    assert.equal((await project.key.get('/usage/thresholds')).body.total, 1)
    assert.equal((await project.key.delete(`/usage/thresholds/${id}`)).status, 204)
    const events = (await project.key.get(`/events?resource_id=${id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: any) => event),
      ['usage_thresholds.deleted', 'usage_thresholds.created'],
    )
  })

  it('cost a project without any no message and no statement', async () => {
    await use(1)
    const before = app.statements.length
    await use(1)
    const made = app.statements.slice(before).filter(text => text.includes('usage'))
    assert.equal(made.length, 1)
    assert.ok(!made[0].includes('pgboss.job'), made[0])
    assert.equal((await usageOf(app, project.id)).length, 2)
  })
})
