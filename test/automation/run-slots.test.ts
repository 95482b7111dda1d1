import assert from 'node:assert/strict'
import { nodeExecutionQueue } from '#automation/orchestrations/runs/queue.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { guardrail } from '../execution/guardrail-support.ts'
import { json, type TargetRequest } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chain, ended, startRunApp } from './fixtures.ts'

type Held = { request: TargetRequest; release: () => void }

describe('run slots', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startRunApp({
      env: { ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: '2', ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000' },
    }),
  )
  let tool_id: string
  /** Calls of the tool that have no answer yet. */
  let held: Held[] = []
  let most = 0

  before(async () => {
    tool_id = await app.tool()
  })
  beforeEach(async () => {
    most = 0
    app.target.requests.length = 0
    app.target.answer = (request, response) => {
      const release = () => {
        held = held.filter(each => each !== one)
        json({ ok: true })(request, response)
      }
      const one = { request, release }
      held.push(one)
      most = Math.max(most, held.length)
    }
    await limit(null)
  })
  // A failed test must not leave slots in use.
  afterEach(async () => {
    const { data } = (await app.key.get('/orchestration-runs?view=summary&limit=100')).body
    for (const run of data) if (!ended(run)) await app.key.post(`/orchestration-runs/${run.id}/cancel`)
    for (const { release } of held) release()
  })

  const limit = async (max_concurrent_runs: number | null) => {
    const reply = await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
  }
  const call = (id: string) => ({ id, type: 'tool', tool_id })
  const started = async (graph: string, count: number) => {
    const runs = []
    for (let n = 0; n < count; n++) runs.push(await app.start(graph, { wait: false }))
    return runs.map(({ id }) => id as string)
  }
  const released = async () => {
    const one = await eventually(() => held[0], { what: 'a call' })
    one.release()
    return one
  }
  const running = async () =>
    (await app.key.get('/orchestration-runs?status=running&nested=false&view=summary')).body.data.map(
      ({ id }: any) => id,
    )

  it('are limited by the project; other runs wait in order', async () => {
    await limit(1)
    const graph = await app.orchestration([call('a'), call('b')], chain('a', 'b'))
    const ids = await started(graph, 1)
    await eventually(() => held[0])
    ids.push(...(await started(graph, 1)), ...(await started(graph, 1)))
    const order: string[] = []
    for (let n = 0; n < 6; n++) {
      await eventually(() => held[0], { what: 'a call' })
      assert.deepEqual(await running(), [held[0].request.headers['idempotency-key']?.toString().split(':')[0]])
      order.push((await running())[0])
      const waiting = await app.key.get('/orchestration-runs?status=queued&view=summary')
      assert.equal(waiting.body.total, 2 - Math.floor(n / 2))
      await released()
      if (n % 2 === 1) await app.until(order[n])
    }
    assert.equal(most, 1)
    assert.deepEqual([...new Set(order)], ids)
    for (const id of ids) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('are released by runs that end in the step that took them, and by cancelled runs', async () => {
    await limit(1)
    const slow = await app.orchestration([call('a')])
    const quick = await app.orchestration([{ id: 'x', type: 'transform', expression: 1 }])
    const [first] = await started(slow, 1)
    await eventually(() => held[0])
    const [gone] = await started(quick, 1)
    const others = await started(quick, 6)
    await app.until(others[5], ({ status }) => status === 'queued')
    assert.equal((await app.key.post(`/orchestration-runs/${gone}/cancel`)).body.status, 'cancelled')
    await released()
    for (const id of [first, ...others]) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('belong to a whole tree: nested runs cannot block themselves', async () => {
    await limit(1)
    const leaf = await app.orchestration([call('a')])
    const middle = await app.orchestration([
      { id: 'l', type: 'loop', orchestration_id: leaf, collection: 'state.input.items', parallelism: 2 },
    ])
    const root = await app.orchestration([
      { id: 's', type: 'sub_orchestration', orchestration_id: middle, input_mapping: { items: [1, 2, 3] } },
    ])
    const ids = await started(root, 2)
    for (let n = 0; n < 6; n++) {
      const { request } = await released()
      const key = request.headers['idempotency-key']?.toString().split(':')[0]
      assert.ok(key)
    }
    for (const id of ids) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('for node executions are awaited with one message each, however often they are swept', async () => {
    const graph = await app.orchestration([call('a')])
    const ids = await started(graph, 12)
    await eventually(() => held.length === 2)
    const sweeps = () =>
      app.pool.oneFirst(
        sql.unsafe`select count(*)::int from pgboss.job_common where name = 'run.sweep' and state = 'completed'`,
      ) as Promise<number>
    // A message is active while a worker finds out that no slot is free; a sweep may then add the next one.
    const messages = () =>
      app.pool.any(sql.unsafe`
        select count(*) filter (where j.state < 'active')::int as waiting, count(j.id)::int as unfinished
        from orchestration_node_executions e left join pgboss.job_common j
          on j.name = ${nodeExecutionQueue.name} and j.state <= 'active' and j.data ->> 'execution_id' = e.id
        where e.run_id = any(${sql.array(ids, 'text')}) and e.status = 'running' and e.leased_until is null
        group by e.id`) as Promise<readonly { waiting: number; unfinished: number }[]>
    await eventually(async () => (await messages()).length === 10)
    const before = await sweeps()
    await eventually(async () => {
      const counts = await messages()
      assert.equal(counts.length, 10)
      for (const { waiting, unfinished } of counts)
        assert.ok(waiting <= 1 && unfinished >= 1, `${waiting} messages wait, ${unfinished} are unfinished`)
      return (await sweeps()) >= before + 5
    })
    for (const _id of ids) await released()
    for (const id of ids) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('are free while a run waits, and awaited when it continues', async () => {
    await limit(1)
    const graph = await app.orchestration([{ id: 'h', type: 'human' }, call('a')], chain('h', 'a'))
    const [one, two] = await started(graph, 2)
    for (const id of [one, two]) await app.until(id, ({ status }) => status === 'awaiting_input')
    const answer = (id: string) =>
      app.key.post(`/orchestration-runs/${id}/human-input`, { node_id: 'h', output: {}, wait: false })
    await answer(one)
    await eventually(() => held[0])
    await answer(two)
    await app.until(two, ({ status, active_nodes }) => status === 'queued' && active_nodes.length === 0)
    await released()
    await released()
    for (const id of [one, two]) assert.equal((await app.until(id)).status, 'succeeded')
    assert.equal(most, 1)
  })

  it('are awaited by a timer that is due', async () => {
    await limit(1)
    const delayed = await app.orchestration([{ id: 'd', type: 'delay', duration: '1h' }, call('b')], chain('d', 'b'))
    const slow = await app.orchestration([call('a')])
    const [timed] = await started(delayed, 1)
    await app.until(timed, ({ status }) => status === 'sleeping')
    const [first] = await started(slow, 1)
    await eventually(() => held[0])
    // The delay is over.
    for (const due of [
      `update orchestration_node_executions set wake_at = now() where run_id = '${timed}' and status = 'waiting'`,
      `update orchestration_runs set wake_at = now(), due_at = now() where id = '${timed}'`,
    ])
      await app.pool.query(rawQuery(due))
    await app.until(timed, ({ status }) => status === 'queued')
    await released()
    await released()
    for (const id of [first, timed]) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('are awaited by a call that was approved in the meantime', async () => {
    await limit(1)
    const rule = await guardrail(app.key, { class: 'C' })
    const guarded = await app.tool({ guardrail_ids: [rule.id] })
    const asked = await app.run([{ id: 'g', type: 'tool', tool_id: guarded }])
    assert.equal(asked.status, 'awaiting_input', JSON.stringify(asked.error))
    const slow = await app.orchestration([call('a')])
    const [first] = await started(slow, 1)
    await eventually(() => held[0])
    const approved = await app.key.post(`/approvals/${asked.required_action.approval_id}/approve`)
    assert.equal(approved.status, 200, JSON.stringify(approved.body))
    await app.until(asked.id, ({ status }) => status === 'queued')
    await released()
    await released()
    for (const id of [first, asked.id]) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('follow a raised limit; a lowered limit stops no run', async () => {
    await limit(2)
    const slow = await app.orchestration([call('a')])
    const ids = await started(slow, 3)
    await eventually(() => held.length === 2)
    await limit(1)
    await released()
    await eventually(
      async () =>
        (await app.read(held[0].request.headers['idempotency-key']?.toString().split(':')[0] as string)).status ===
        'running',
    )
    assert.equal(held.length, 1)
    await limit(2)
    await eventually(() => held.length === 2, { what: 'the third call' })
    for (const { release } of held.slice()) release()
    for (const id of ids) assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('limit the node executions of a project over all workers', async () => {
    const names = ['a', 'b', 'c', 'd', 'e']
    const graph = await app.orchestration(names.map(call))
    const ids = await started(graph, 3)
    for (let n = 0; n < 15; n++) {
      await eventually(() => held[0])
      const leased = await app.key.get('/orchestration-runs?status=running&limit=10')
      assert.ok(leased.body.data.length > 0)
      await released()
    }
    for (const id of ids) assert.ok(ended(await app.until(id)))
    assert.equal(most, 2)
  })
})
