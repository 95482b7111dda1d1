import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { eventsOf } from '../execution/decider-support.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chain, startRunApp } from './fixtures.ts'

const ask = { id: 'ask', type: 'human' }
const waits = ({ status }: { status: string }) => status === 'awaiting_input'

describe('deleting an orchestration', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)

  const remove = async (id: string) => assert.equal((await app.key.delete(`/orchestrations/${id}`)).status, 204)
  const eventNames = async (id: string) => (await eventsOf(app.key, id)).map(({ event }: any) => event)

  it('cancels and deletes its runs, with their pending approvals', async () => {
    const tool_id = await app.tool()
    const id = await app.orchestration([ask, { id: 'approve', type: 'approval', tool_id }])
    const run = await app.start(id)
    assert.equal(run.status, 'awaiting_input')
    const approval = run.required_actions.find(({ type }: any) => type === 'approval').approval_id
    const done = await app.run([{ id: 'a', type: 'transform', expression: 1 }])
    await remove(id)
    assert.equal((await app.key.get(`/orchestration-runs/${run.id}`)).status, 404)
    assert.ok((await eventNames(run.id)).includes('orchestration_runs.cancelled'))
    assert.equal((await app.key.get(`/approvals/${approval}`)).body.status, 'expired')
    assert.equal((await app.key.get(`/orchestration-runs/${done.id}`)).status, 200)
  })

  it('blocks a concurrent start, which then finds no orchestration', async () => {
    const id = await app.orchestration([ask])
    const held = Promise.withResolvers<void>()
    const deleted = Promise.withResolvers<void>()
    const removing = app.services.write(async tx => {
      await tx.query(sql.unsafe`delete from orchestrations where id = ${id}`)
      deleted.resolve()
      await held.promise
    })
    await deleted.promise
    const starting = app.key.post('/orchestration-runs', { orchestration_id: id })
    await eventually(async () => {
      const waiting = sql.unsafe`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
      return (await app.pool.any(waiting)).length > 0
    })
    held.resolve()
    await removing
    const { status, body } = await starting
    assert.deepEqual([status, body.error.code], [404, 'ORCHESTRATION_NOT_FOUND'])
  })

  it('fails runs of other orchestrations that wait for one of its runs', async () => {
    const below = await app.orchestration([ask])
    const parent = await app.run(
      [
        { id: 'one', type: 'sub_orchestration', orchestration_id: below },
        { id: 'after', type: 'transform', expression: 1 },
      ],
      chain('one', 'after'),
    )
    assert.equal(parent.required_actions[0].type, 'nested_run')
    await remove(below)
    const failed = await app.until(parent.id)
    assert.equal(failed.status, 'failed')
    assert.equal(failed.error.code, 'ORCHESTRATION_NESTED_RUN_FAILED')
    assert.equal(failed.error.meta.node_id, 'one')
    assert.equal(failed.failed_node_id, 'one')
  })

  it('deletes runs of other orchestrations that its runs started, at any depth', async () => {
    const leaf = await app.orchestration([ask])
    const middle = await app.orchestration([
      { id: 'each', type: 'loop', orchestration_id: leaf, collection: 'input.items' },
    ])
    const top = await app.orchestration([
      { id: 'sub', type: 'sub_orchestration', orchestration_id: middle, input_mapping: { items: [1, 2] } },
    ])
    const run = await app.start(top)
    assert.ok(waits(run))
    const leaves = (await app.key.get(`/orchestration-runs?orchestration_id=${leaf}`)).body.data
    assert.equal(leaves.length, 2)
    await remove(top)
    assert.equal((await app.key.get(`/orchestration-runs?orchestration_id=${leaf}`)).body.total, 0)
    for (const { id } of leaves) assert.ok((await eventNames(id)).includes('orchestration_runs.cancelled'))
    assert.equal((await app.key.get(`/orchestrations/${leaf}`)).status, 200)
  })

  it('releases the slots of its runs', async () => {
    const limit = (max_concurrent_runs: number | null) =>
      app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs })
    const tool_id = await app.tool()
    let release = () => {}
    const released = new Promise<void>(resolve => {
      release = resolve
    })
    app.target.answer = async (_request, response) => {
      await released
      response.setHeader('content-type', 'application/json').end('{}')
    }
    try {
      assert.equal((await limit(1)).status, 200)
      const slow = await app.orchestration([{ id: 'slow', type: 'tool', tool_id }])
      const first = await app.start(slow, { wait: false })
      await app.until(first.id, ({ status }) => status === 'running')
      const quick = await app.orchestration([{ id: 'a', type: 'transform', expression: 1 }])
      const second = await app.start(quick, { wait: false })
      await remove(slow)
      assert.equal((await app.until(second.id)).status, 'succeeded')
    } finally {
      release()
      await limit(null)
    }
  })
})
