import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, startRunApp } from './fixtures.ts'

/** A worker that makes one attempt after the other of a run does not read the run in between, unless it has changed. */
describe('runs advanced without being read', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startRunApp({
      // A heartbeat would find out before the attempt ends.
      env: { ORCHESTRATION_NODE_LEASE_SECONDS: '600' },
      actions: ['orchestrations:*', 'tools:CreateTool', 'tools:CallTool', 'usage:*'],
    }),
  )
  let orchestration: string
  let release = () => {}

  before(async () => {
    const tool_id = await app.tool()
    const nodes = ['a', 'b', 'c'].map(id => ({ id, type: 'tool', tool_id }))
    orchestration = await app.orchestration(nodes, chain('a', 'b', 'c'))
  })

  /** A run whose second call waits to be answered. */
  const held = async () => {
    app.target.requests.length = 0
    app.target.answer = (request, response) => {
      const answer = () => json({ ok: true })(request, response)
      if (app.target.requests.length === 2) release = answer
      else answer()
    }
    const run = await app.start(orchestration, { wait: false })
    await eventually(() => app.target.requests.length === 2)
    return run
  }
  const query = (text: string) => app.pool.query(rawQuery(text))
  const post = async (path: string) => assert.equal((await app.key.post(path)).status, 200)
  const states = async (id: string) => attempts(await app.read(id))

  it('call each tool once', async () => {
    const run = await held()
    const released = Date.now()
    release()
    const { node_executions } = await app.until(run.id)
    assert.deepEqual(attempts({ node_executions }), ['a:1:completed', 'b:1:completed', 'c:1:completed'])
    assert.equal(app.target.requests.length, 3)
    // By the clock of the database, which runs on this machine.
    const [, b, c] = node_executions
    assert.ok(Date.parse(b.completed_at) >= released && Date.parse(c.started_at) >= released)
    const times = node_executions.flatMap(({ started_at, completed_at }: any) => [started_at, completed_at])
    assert.deepEqual(times, times.toSorted())
  })

  it('call a tool with its changes until the end of the previous node', async () => {
    const tools = [await app.tool(), await app.tool(), await app.tool()]
    const nodes = tools.map((tool_id, n) => ({ id: `n${n}`, type: 'tool', tool_id }))
    const graph = await app.orchestration(nodes, chain('n0', 'n1', 'n2'))
    for (const deleted of [false, true]) {
      app.target.requests.length = 0
      app.target.answer = (request, response) => {
        const answer = () => json({ ok: true })(request, response)
        if (app.target.requests.length === 1) release = answer
        else answer()
      }
      const run = await app.start(graph, { wait: false })
      await eventually(() => app.target.requests.length === 1)
      const path = `/tools/${tools[1]}`
      const change = deleted
        ? await app.admin.delete(path)
        : await app.admin.patch(path, { execute: { url: `${app.target.url}/changed` } })
      assert.ok(change.status < 300, JSON.stringify(change.body))
      release()
      const { status, error } = await app.until(run.id)
      assert.deepEqual([status, error?.code ?? null], deleted ? ['failed', 'TOOL_NOT_FOUND'] : ['succeeded', null])
      assert.deepEqual(
        app.target.requests.map(({ url }: any) => new URL(url, 'http://target').pathname.includes('changed')),
        deleted ? [false] : [false, true, false],
      )
    }
  })

  it('end as GET has them, with all node executions and usage', async () => {
    const tool_id = await app.tool()
    const price = {
      meter_type: 'tool_execution',
      provider: 'platform',
      model: 'tool-call',
      component: 'tool_call',
      unit: 'tool_call',
      unit_price: 0.5,
      effective_from: '2020-01-01T00:00:00Z',
    }
    assert.equal((await app.admin.put('/usage/prices', { prices: [price] })).status, 200)
    const call = (id: string, more: object = {}) => ({ id, type: 'tool', tool_id, ...more })
    const set = (id: string) => ({ id, type: 'transform', expression: { cat: [id] } })
    for (const [bytes, nodes, edges] of [
      [10, [call('a')], []],
      [10, [set('x'), set('b'), set('a'), call('c'), call('d')], [...chain('x', 'c', 'd'), ...chain('b', 'c')]],
      // Too large to be kept by the worker.
      [100_000, [call('a'), call('b'), call('c')], chain('a', 'b', 'c')],
    ] as const) {
      app.target.answer = json({ text: 'x'.repeat(bytes) })
      const run = await app.start(await app.orchestration([...nodes], [...edges]))
      assert.equal(run.status, 'succeeded', JSON.stringify(run))
      assert.equal(run.node_executions.length, nodes.length)
      assert.equal(run.usage.cost_usd, 0.5 * nodes.filter(({ type }) => type === 'tool').length)
      assert.deepEqual(await app.read(run.id), run)
    }
  })

  it('start nothing after a pause of the run or the project', async () => {
    for (const [pause, resume] of [
      [
        (id: string) => post(`/orchestration-runs/${id}/pause`),
        (id: string) => post(`/orchestration-runs/${id}/resume`),
      ],
      [
        // Before its runs are notified.
        () => query(`update projects set paused_at = now() where id = '${app.projectId}'`),
        async (id: string) => {
          await query(`update projects set paused_at = null where id = '${app.projectId}'`)
          await post(`/orchestration-runs/${id}/pause`)
          await post(`/orchestration-runs/${id}/resume`)
        },
      ],
    ]) {
      const run = await held()
      await pause(run.id)
      release()
      await app.until(run.id, ({ node_executions }) => node_executions[1].status === 'completed')
      assert.deepEqual(await states(run.id), ['a:1:completed', 'b:1:completed'])
      await resume(run.id)
      assert.equal((await app.until(run.id)).status, 'succeeded')
      assert.equal(app.target.requests.length, 3)
    }
  })

  it('stay cancelled after a later advance', async () => {
    const run = await held()
    await post(`/orchestration-runs/${run.id}/cancel`)
    release()
    const used = () => app.key.get(`/usage/events?orchestration_run_id=${run.id}&meter_type=tool_execution`)
    await eventually(async () => (await used()).body.total === 2)
    assert.deepEqual(await states(run.id), ['a:1:completed', 'b:1:cancelled'])
    assert.equal((await app.read(run.id)).status, 'cancelled')
  })

  it('are abandoned by a worker that lost its claim', async () => {
    const run = await held()
    await query(`update orchestration_node_executions set deliveries = deliveries + 1
      where run_id = '${run.id}' and node_id = 'b'`)
    release()
    const used = () => app.key.get(`/usage/events?orchestration_run_id=${run.id}&meter_type=tool_execution`)
    await eventually(async () => (await used()).body.total === 2)
    assert.deepEqual(await states(run.id), ['a:1:completed', 'b:1:running'])
    // The lease of the other is over.
    await query(`update orchestration_node_executions set leased_until = now() where run_id = '${run.id}'`)
    await eventually(async () => (await app.read(run.id)).status === 'succeeded', { within: 40_000 })
    assert.equal(app.target.requests.length, 4)
  })
})
