import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually, startApp } from '../support/app.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'
import { startRunApp } from './fixtures.ts'

const PATH = '/orchestrations/queue/stats'

describe('statistics of the run queue', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ env: { ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: '1' } }))
  let release = () => {}
  after(async () => {
    release()
  })

  const reader = async (...resource: string[]) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['orchestrations:GetQueueStats'], resource }] }])

  it('count queued and claimed work by project', async () => {
    const idle = (await app.key.get(PATH)).body
    assert.deepEqual(idle, {
      driver: 'postgres',
      queue_depth: 0,
      claimed_tasks: 0,
      oldest_queued_age_seconds: null,
      claim_latency_ms: { p50: null, p95: null, window_seconds: 300 },
      per_project: [],
      // The application of this test has workers of these kinds alone.
      missing_workers: idle.missing_workers,
    })
    assert.ok(!idle.missing_workers.includes('orchestration'))
    const released = new Promise<void>(resolve => {
      release = resolve
    })
    app.target.answer = async (_request, response) => {
      await released
      response.setHeader('content-type', 'application/json').end('{}')
    }
    const tool_id = await app.tool()
    const id = await app.orchestration(['a', 'b', 'c'].map(node => ({ id: node, type: 'tool', tool_id })))
    const run = await app.start(id, { wait: false })
    let stats: any
    await eventually(async () => (stats = (await app.key.get(PATH)).body).claimed_tasks === 1, { what: 'a claim' })
    await app.until(run.id, ({ status }) => status === 'running')
    assert.equal(stats.queue_depth, 2)
    assert.deepEqual(stats.per_project, [{ project_id: app.projectId, queued: 2, claimed: 1 }])
    assert.ok(stats.oldest_queued_age_seconds >= 0)
    assert.ok(stats.claim_latency_ms.p50 >= 0 && stats.claim_latency_ms.p95 >= stats.claim_latency_ms.p50)

    const oldest = async () => (await scrape(app.url)).value('muster_work_oldest_seconds', { concern: 'orchestration' })
    // Messages only wake; waiting work is in the rows.
    await app.pool.query(rawQuery("delete from pgboss.job_common where state < 'active'"))
    assert.ok(((await oldest()) as number) > 0)

    const elsewhere = await app.project()
    assert.equal((await elsewhere.key.get(PATH)).body.queue_depth, 0)
    assert.equal((await elsewhere.key.get(PATH)).body.claim_latency_ms.p50, null)
    assert.equal((await app.admin.get(PATH)).body.queue_depth, 2)
    assert.equal((await app.admin.get(`${PATH}?project_id=${elsewhere.id}`)).body.queue_depth, 0)
    const both = await reader(`srn:${app.projectId}:*:*`, `srn:${elsewhere.id}:*:*`)
    assert.equal((await both.get(PATH)).body.queue_depth, 2)
    const one = await reader(`srn:${elsewhere.id}:orchestration:*`)
    assert.equal((await one.get(PATH)).body.queue_depth, 0)
    assert.deepEqual((await one.get(PATH)).body.per_project, [])

    release()
    await app.until(run.id)
    assert.equal((await app.key.get(PATH)).body.queue_depth, 0)
    assert.equal(await oldest(), 0)
  })

  it('include the usage of the runs of an orchestration', async () => {
    app.target.answer = json({ ok: true })
    const tool_id = await app.tool()
    const nodes = [{ id: 'a', type: 'tool', tool_id }]
    const run = await app.run(nodes)
    await app.run(nodes)
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    const used = async (query: string) => (await app.key.get(`/usage/events?${query}`)).body
    const own = await used(`orchestration_id=${run.orchestration_id}`)
    assert.ok(own.total > 0)
    assert.ok(own.data.every(({ orchestration_run_id }: any) => orchestration_run_id === run.id))
    assert.equal(own.total, (await used(`orchestration_run_id=${run.id}`)).total)
  })

  it('are refused without the permission to list runs', async () => {
    assert.equal((await (await app.user()).get(PATH)).status, 403)
    assert.equal((await (await app.projectWith(['orchestrations:GetRun'])).key.get(PATH)).status, 403)
    const named = await reader(`srn:${app.projectId}:orchestration:orch_00000000000000000000000000`)
    assert.equal((await named.get(`${PATH}?project_id=${app.projectId}`)).status, 403)
    // It has the action, and no project in which it has it.
    const none = await named.get(PATH)
    assert.deepEqual([none.status, none.body.error.code], [403, 'FORBIDDEN'])
    assert.equal((await (await reader('srn:proj_00000000000000000000000000:*:*')).get(PATH)).status, 403)
    // What began lately counts, also where nothing waits any more.
    const { p50 } = (await (await reader(`srn:${app.projectId}:*:*`)).get(PATH)).body.claim_latency_ms
    assert.ok(p50 >= 0)
    assert.notEqual(p50, null)
    const other = await app.project()
    assert.equal((await other.key.get(`${PATH}?project_id=${app.projectId}`)).status, 403)
    assert.equal((await app.admin.get(`${PATH}?project_id=proj_00000000000000000000000000`)).status, 404)
  })

  it('refuse an unsupported driver', async () => {
    const wrong = await startApp({ databaseUrl: app.databaseUrl, env: { ORCHESTRATION_QUEUE_DRIVER: 'redis' } })
    try {
      const reply = await wrong.admin.get(PATH)
      assert.equal(reply.status, 500)
      assert.equal(reply.body.error.code, 'QUEUE_DRIVER_MISCONFIGURED')
    } finally {
      await wrong.close()
    }
  })
})
