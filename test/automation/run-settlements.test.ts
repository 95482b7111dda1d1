import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { rawQuery } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, startRunApp } from './fixtures.ts'

const ENV = { ORCHESTRATION_NODE_LEASE_SECONDS: '600', ORCHESTRATION_WORKER_CONCURRENCY: '40' }
const NODES = Array.from({ length: 10 }, (_, n) => `n${n}`)

/** Node executions that start together end in few transactions: those that end meanwhile join the next one. */
describe('node executions of a run that end together', function () {
  this.timeout(60_000)
  // In this process, so that all have ended when its event loop has turned.
  const app = forSuite(() => startRunApp({ inProcess: true, env: ENV }))
  let orchestration: string
  let releases: (() => void)[] = []

  before(async () => {
    const tool_id = await app.tool()
    orchestration = await app.orchestration(NODES.map(id => ({ id, type: 'tool', tool_id })))
  })
  beforeEach(() => {
    releases = []
    app.target.requests.length = 0
    app.target.answer = (request, response) => void releases.push(() => json({ ok: true })(request, response))
  })

  const query = (text: string) => app.pool.query(rawQuery(text))
  const called = async () => {
    const run = await app.start(orchestration, { wait: false })
    await eventually(() => releases.length === NODES.length, { what: 'the calls of all nodes' })
    return run.id as string
  }
  /** Has all calls answered while the row of the run is locked; returns its revision before. */
  const endTogether = async (id: string): Promise<number> => {
    const db = new pg.Client({ connectionString: app.databaseUrlOf(app.projectId) })
    await db.connect()
    try {
      await db.query('begin')
      const { rows } = await db.query('select revision from orchestration_runs where id = $1 for update', [id])
      for (const release of releases) release()
      for (let turn = 0; turn < 60; turn++) await sleep(5)
      await db.query('commit')
      return rows[0].revision
    } finally {
      await db.end()
    }
  }
  const revision = async (id: string): Promise<number> =>
    Number(await app.pool.oneFirst(rawQuery(`select revision::text from orchestration_runs where id = '${id}'`)))
  const used = async (id: string, meter: string): Promise<number> =>
    (await app.key.get(`/usage/events?orchestration_run_id=${id}&meter_type=${meter}`)).body.total

  it('are settled by two transactions, each with its outcome, activity and usage', async () => {
    const id = await called()
    const before = await endTogether(id)
    const run = await app.until(id)
    assert.equal(run.status, 'succeeded')
    assert.ok((await revision(id)) - before <= 2, `${(await revision(id)) - before} transactions`)
    assert.deepEqual(
      attempts(run).toSorted(),
      NODES.map(node => `${node}:1:completed`),
    )
    assert.deepEqual(run.output, Object.fromEntries(NODES.map(node => [node, { ok: true }])))
    assert.equal(await used(id, 'tool_execution'), NODES.length)
    assert.equal(await used(id, 'compute_execution'), NODES.length)
    const activity = await app.key.get(`/activity?orchestration_run_id=${id}&kind=action_executed&limit=50`)
    assert.equal(activity.body.data.length, NODES.length, JSON.stringify(activity.body))
    // The worker that started them has executed them, without a message for each.
    const messages = await app.pool.oneFirst(
      rawQuery(`select count(*)::int from pgboss.job where name = 'node.execute' and data ->> 'run_id' = '${id}'`),
    )
    assert.equal(messages, 0)
  })

  it('are settled without one whose claim was lost, which another worker repeats', async () => {
    const id = await called()
    await query(`update orchestration_node_executions set deliveries = deliveries + 1
      where run_id = '${id}' and node_id = 'n3'`)
    await endTogether(id)
    const settled = (node: string) => (node === 'n3' ? 'running' : 'completed')
    const is = ({ node_executions }: any) => attempts({ node_executions }).filter(of => of.endsWith('completed')).length
    const run = await app.until(id, of => is(of) === NODES.length - 1)
    assert.deepEqual(
      attempts(run).toSorted(),
      NODES.map(node => `${node}:1:${settled(node)}`),
    )
    await eventually(async () => (await used(id, 'tool_execution')) === NODES.length)
    app.target.answer = json({ ok: true })
    await query(`update orchestration_node_executions set leased_until = now() where run_id = '${id}' and not applied`)
    await eventually(async () => (await app.read(id)).status === 'succeeded', { within: 40_000 })
    assert.equal(app.target.requests.length, NODES.length + 1)
  })

  it('are settled without a refused one, which fails', async () => {
    const refused = `new.node_id = 'n3' and new.status = 'completed'`
    await refusingUpdates(app.services, 'orchestration_node_executions', refused, async () => {
      const id = await called()
      await endTogether(id)
      const run = await app.until(id)
      assert.deepEqual([run.status, run.error.code], ['failed', 'INTERNAL_ERROR'])
      assert.deepEqual(
        attempts(run).toSorted(),
        NODES.map(node => `${node}:1:${node === 'n3' ? 'failed' : 'completed'}`),
      )
      assert.equal(await used(id, 'tool_execution'), NODES.length)
    })
  })

  it('change nothing of a cancelled run, and their usage counts', async () => {
    const id = await called()
    assert.equal((await app.key.post(`/orchestration-runs/${id}/cancel`)).status, 200)
    const cancelled = await app.read(id)
    await endTogether(id)
    await eventually(async () => (await used(id, 'tool_execution')) === NODES.length)
    const { usage, usage_own, ...unchanged } = await app.read(id)
    const { usage: _, usage_own: __, ...before } = cancelled
    assert.deepEqual(unchanged, before)
    assert.deepEqual([...new Set(attempts(cancelled).map(of => of.split(':')[2]))], ['cancelled'])
    assert.deepEqual(usage, usage_own)
  })
})

describe('node executions of a run that start together', function () {
  this.timeout(60_000)
  const LIMIT = 24
  const env = {
    EGRESS_ALLOW_HOSTS: '127.0.0.1',
    ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: String(LIMIT),
    ORCHESTRATION_WORKER_CONCURRENCY: '40',
  }
  const app = forSuite(() => startRunApp({ workers: [], env }))
  const steady = steadyWorkers()
  afterEach(() => steady.stop())

  it('of several runs stay within the limit of their project in all workers, and reach it', async () => {
    const tool_id = await app.tool()
    const graph = await app.orchestration(NODES.map(id => ({ id, type: 'tool', tool_id })))
    const held = new Set<() => void>()
    let most = 0
    app.target.answer = (request, response) => {
      const release = () => held.delete(release) && json({ ok: true })(request, response)
      held.add(release)
      most = Math.max(most, held.size)
    }
    for (let n = 0; n < 2; n++) await steady.start(app.databaseUrl, env, ['orchestration'])
    const runs = await Promise.all(Array.from({ length: 5 }, () => app.start(graph, { wait: false })))
    await eventually(() => held.size === LIMIT, { what: `${LIMIT} calls`, within: 30_000 })
    await sleep(500)
    app.target.answer = (request, response) => {
      most = Math.max(most, held.size + 1)
      json({ ok: true })(request, response)
    }
    for (const release of held) release()
    for (const { id } of runs) assert.equal((await app.until(id)).status, 'succeeded')
    assert.equal(most, LIMIT)
    assert.equal(app.target.requests.length, runs.length * NODES.length)
  })
})
