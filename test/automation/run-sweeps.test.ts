import assert from 'node:assert/strict'
import { sweepRuns } from '#automation/orchestrations/runs/engine/sweep.ts'
import { runQueue } from '#automation/orchestrations/runs/queue.ts'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { startRunApp } from './fixtures.ts'
import { copyRun } from './support/copies.ts'

describe('run sweeps', () => {
  const app = forSuite(() => startRunApp({ workers: [] }))

  /** A run that waits for a person, whose worker has gone, and copies of it. Their ids in order. */
  async function waiting(copies: number): Promise<string[]> {
    const worker = await runWorker(app.databaseUrl, {}, ['orchestration'])
    const run = await app.run([{ id: 'ask', type: 'human' }])
    assert.equal(run.status, 'awaiting_input')
    await worker.stop()
    const ids = [run.id, ...(await copyRun(app.pool, run.id, copies))]
    await quiet()
    return ids.sort()
  }
  const quiet = async () => {
    await app.pool.query(sql.unsafe`update orchestration_runs set updated_at = now() - interval '1 hour'`)
    await app.pool.query(sql.unsafe`delete from pgboss.job_common where name ~ '^(run|node)[.]'`)
  }
  /** The runs that a sweep wakes, and how many statements it takes. */
  async function swept(): Promise<{ woken: string[]; statements: number }> {
    const { pool } = app
    const before = app.statements.length
    await sweepRuns({ services: app.services, stopping: new AbortController().signal }, true)
    // Without the statements of the process itself, such as checks after a reconnect.
    const statements = app.statements.slice(before).filter(text => text.includes('orchestration')).length
    const woken = await pool.anyFirst(sql.unsafe`
      select data ->> 'run_id' from pgboss.job_common where name = 'run.advance' and state = 'created' order by 1`)
    const others = await pool.anyFirst(sql.unsafe`
      select distinct name from pgboss.job_common where name ~ '^(run|node)[.]' and name <> 'run.advance'`)
    assert.deepEqual(others, [])
    return { woken: woken as string[], statements }
  }
  const clear = () => app.pool.query(sql.unsafe`delete from orchestration_runs`)

  it('send nothing for waiting runs, and check them in pages', async () => {
    await waiting(2500)
    const { woken, statements } = await swept()
    assert.deepEqual(woken, [])
    // Six queries for due, lost, stale or deleted rows, and two pages.
    assert.equal(statements, 8)
    await clear()
  })

  it('find one of many runs whose notification was lost', async () => {
    const ids = await waiting(2500)
    const places = [0, 1999, 2000, 2500]
    for (const at of places)
      await app.pool.query(sql.unsafe`
        update orchestration_node_executions set status = 'completed', completed_at = now() where run_id = ${ids[at]}`)
    assert.deepEqual((await swept()).woken, places.map(at => ids[at]).sort())
    await clear()
  })

  it('wake the trees next in line for a slot, and runs of running trees', async () => {
    const ids = await waiting(300)
    const { pool } = app
    await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs: 2 })
    const queue = () =>
      pool.query(sql.unsafe`
        update orchestration_runs r set status = 'queued', queued_at = now() - (1000 - o.n) * interval '1 s'
        from unnest(${sql.array(ids, 'text')}) with ordinality as o (id, n) where o.id = r.id`)
    await queue()
    // Two free slots and ten more trees, since the first may be unable to continue.
    assert.deepEqual((await swept()).woken, ids.slice(0, 12))
    const run = (id: string) =>
      pool.query(sql.unsafe`update orchestration_runs set status = 'running', queued_at = null where id = ${id}`)
    await run(ids[0])
    await quiet()
    await pool.query(sql.unsafe`update orchestration_runs set root_id = ${ids[0]} where id = ${ids[300]}`)
    assert.deepEqual(
      (await swept()).woken.filter(id => id !== ids[0]),
      [...ids.slice(1, 12), ids[300]].sort(),
    )
    // A run to be cancelled needs no slot.
    const setParent = (execution: string | null) =>
      pool.query(sql.unsafe`update orchestration_runs set parent_execution_id = ${execution} where id = ${ids[200]}`)
    await setParent('gone')
    await quiet()
    assert.ok((await swept()).woken.includes(ids[200]))
    await setParent(null)
    await run(ids[1])
    await quiet()
    assert.deepEqual(
      (await swept()).woken.filter(id => !ids.slice(0, 2).includes(id)),
      [ids[300]],
    )
    await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs: null })
    await quiet()
    assert.equal((await swept()).woken.filter(id => !ids.slice(0, 2).includes(id)).length, 299)
    await clear()
  })

  it('let a run of one project wait for only a few of the many runs of another', async () => {
    const ids = await waiting(600)
    const { pool } = app
    const other = await app.project()
    const graph = { name: 'one', nodes: [{ id: 'a', type: 'transform', expression: 1 }], edges: [] }
    const { body } = await other.key.post('/orchestrations', graph)
    const messages = ids.map(run_id => ({ queue: runQueue, data: { run_id, project_id: app.projectId } }))
    await app.services.queues.send(messages)
    const { body: run } = await other.key.post('/orchestration-runs', { orchestration_id: body.id })
    // Messages are taken of projects in turn: it is among the first, however many were sent before it.
    const worker = await runWorker(app.databaseUrl, {}, ['orchestration'])
    const done = await eventually(async () => {
      const found = (await other.key.get(`/orchestration-runs/${run.id}`)).body
      return found.status === 'succeeded' ? found : null
    })
    const before = await pool.oneFirst(sql.unsafe`
      select count(*)::int from pgboss.job_common
      where name = 'run.advance' and completed_on < ${done.completed_at}::timestamptz`)
    await worker.stop()
    assert.ok((before as number) < 100, `${before} of another project came first`)
    await clear()
  })
})
