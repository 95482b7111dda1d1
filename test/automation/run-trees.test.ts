import assert from 'node:assert/strict'
import { cancelRunPage } from '#automation/orchestrations/runs/commands/cancel-descendants.ts'
import { listNestedRuns } from '#automation/orchestrations/runs/commands/tree-store.ts'
import { runKind } from '#automation/orchestrations/runs/model.ts'
import { nodeExecutionQueue } from '#automation/orchestrations/runs/queue.ts'
import { presentRunDetail } from '#automation/orchestrations/runs/reads/present-run.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { insertUsage, tokenUse } from '../support/usage.ts'
import { RUN_ACTIONS, set, startRunApp } from './fixtures.ts'
import { copyRun, copyTree } from './support/copies.ts'

const ENV = {
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
}

describe('large run trees', function () {
  this.timeout(180_000)
  const app = forSuite(() => startRunApp({ workers: [], env: ENV }))
  let seeds: Record<'cancel' | 'page' | 'others' | 'call' | 'turn' | 'fail' | 'pause' | 'delete', Seed>
  let done: any
  before(async () => {
    const made = await worker()
    const seed = async (nodes: object[], is: (leaf: any) => boolean) => grown(await app.orchestration(nodes), is)
    const asks = () => seed([{ id: 'ask', type: 'human' }], ({ status }) => status === 'awaiting_input')
    app.target.answer = () => {}
    const call = { id: 'call', type: 'tool', tool_id: await app.tool() }
    const turn = { id: 'ask', type: 'agent', agent_id: app.agentId }
    seeds = {
      cancel: await asks(),
      page: await asks(),
      others: await asks(),
      fail: await asks(),
      pause: await asks(),
      delete: await asks(),
      call: await seed([call], () => app.target.requests.length > 0),
      turn: await seed([turn], ({ node_executions }) => node_executions[0]?.generation_id),
    }
    done = await app.start(await app.orchestration([set('a')]))
    await made.kill()
  })
  // What workers left that were killed.
  beforeEach(() => app.pool.query(sql.unsafe`delete from pgboss.job_common where name ~ '^(run|node)[.]'`))

  const worker = (env: Record<string, string> = {}) =>
    startProcess('worker', app.databaseUrl, { ...ENV, ...env }, ['orchestration'])
  /** A worker that comes to no harm. */
  const steadyWorker = (kinds = ['orchestration']) => runWorker(app.databaseUrl, ENV, kinds)

  const count = (what: Parameters<typeof app.pool.oneFirst>[0]) => app.pool.oneFirst(what) as Promise<number>
  /** Runs of a tree that have not ended. */
  const live = (root: string) =>
    count(sql.unsafe`
      select count(*)::int from orchestration_runs
      where root_id = ${root} and status in ('queued', 'running', 'sleeping', 'awaiting_input')`)
  const messages = () =>
    app.pool.any(sql.unsafe`
      select name, count(*)::int as count from pgboss.job_common
      where name ~ '^(run|node)[.]' and state <= 'active' group by 1 order by 1`)

  const loop = (orchestration_id: string) => ({
    id: 'each',
    type: 'loop',
    orchestration_id,
    collection: 'input.items',
    input_mapping: { items: [1] },
  })

  type Seed = { root: string; top: string; middle: string; leaf: any }

  /** A live run with one nested run at each of two depths, whose leaf is as given. */
  async function grown(leaf: string, is: (leaf: any) => boolean): Promise<Seed> {
    const middle = await app.orchestration([loop(leaf)])
    const top = await app.orchestration([loop(middle)])
    const root = (await app.start(top, { input: { items: [1] }, wait: false })).id
    const waiting = await eventually(async () => {
      const [found] = (await app.key.get(`/orchestration-runs?orchestration_id=${leaf}`)).body.data
      return found && is(found) ? found : null
    })
    await app.idle(root)
    return { root, top, middle, leaf: waiting }
  }
  /** Copies the nested runs of the tree up to a number at each depth. */
  const grow = ({ leaf }: Seed, copies: number) => copyTree(app.pool, leaf.parent_orchestration_run_id, copies)

  /** What a request of this process does in the database. */
  async function costOf<T>(request: () => Promise<T>): Promise<{ reply: T; statements: number }> {
    const before = app.statements.length
    const reply = await request()
    return { reply, statements: app.statements.length - before }
  }

  /** Runs until a worker dies in the middle of its work and another completes it. */
  async function survived(point: string, isDone: () => Promise<boolean>): Promise<void> {
    const first = await worker({ FAULT_POINTS: point })
    assert.equal((await first.exited).signal, 'SIGKILL')
    assert.equal(await isDone(), false)
    const second = await steadyWorker()
    try {
      await eventually(isDone, { within: 120_000 })
    } finally {
      await second.stop()
    }
  }
  const exists = (orchestrationId: string) =>
    app.pool.exists(sql.unsafe`select from orchestrations where id = ${orchestrationId}`)

  it('make no calls after cancellation, before they are cancelled themselves', async () => {
    const { root } = seeds.call
    await grow(seeds.call, 150)
    const attempts = await app.pool.any(sql.unsafe`
      update orchestration_node_executions set leased_until = null where node_id = 'call' returning id, run_id`)
    assert.equal(attempts.length, 151)
    assert.equal((await app.key.post(`/orchestration-runs/${root}/cancel`)).status, 200)
    // No message announces their cancellation: a sweep finds them after these.
    await app.pool.query(sql.unsafe`delete from pgboss.job_common where name = 'run.control_descendants'`)
    await app.services.queues.send(
      attempts.map(({ id, run_id }: any) => ({
        queue: nodeExecutionQueue,
        data: { execution_id: id, run_id, project_id: app.projectId },
      })),
    )
    const made = await steadyWorker()
    try {
      await eventually(async () => (await live(root)) === 0, { within: 60_000 })
      assert.equal(app.target.requests.length, 1)
    } finally {
      await made.stop()
    }
  })

  it('are cancelled by a request that cancels one run, and by workers of which one is lost', async () => {
    const { root, leaf } = seeds.cancel
    await grow(seeds.cancel, 1000)
    const all = await live(root)
    assert.equal(all, 2003)
    await app.pool.query(sql.unsafe`delete from events`)
    const { reply, statements } = await costOf(() => app.key.post(`/orchestration-runs/${root}/cancel`))
    assert.deepEqual([reply.status, reply.body.status], [200, 'cancelled'])
    assert.ok(statements < 20, `${statements} statements`)
    assert.equal(await live(root), all - 1)
    assert.deepEqual(await messages(), [{ name: 'run.control_descendants', count: 1 }])
    assert.equal((await app.key.post(`/orchestration-runs/${root}/cancel`)).status, 409)
    const answered = await app.key.post(`/orchestration-runs/${leaf.id}/human-input`, { node_id: 'ask', output: {} })
    assert.deepEqual([answered.status, answered.body.error?.code], [409, 'ORCHESTRATION_RUN_NOT_AWAITING_INPUT'])

    await survived('run_followed=kill:4', async () => (await live(root)) === 0)
    const events = await app.pool.one(sql.unsafe`
      select count(*)::int as count, count(distinct resource_id)::int as runs
      from events where name = 'orchestration_runs.cancelled'`)
    assert.deepEqual(events, { count: all, runs: all })
    const statuses = sql.unsafe`select distinct status from orchestration_runs where root_id = ${root}`
    assert.deepEqual(await app.pool.anyFirst(statuses), ['cancelled'])
  })

  it('are cancelled by a constant number of statements per page, with the usage of each tree in its event', async () => {
    const { root } = seeds.page
    await grow(seeds.page, 400)
    const { services } = app
    const { pool } = services
    const runs = (await pool.any(sql.unsafe`
      select id, run_depth from orchestration_runs where root_id = ${root} order by id`)) as {
      id: string
      run_depth: number
    }[]
    await insertUsage(
      app,
      app.projectId,
      runs.flatMap(({ id: orchestration_run_id }, n) =>
        Array.from({ length: n % 3 }, () => ({
          ...tokenUse({ cost: n % 2 ? 0.25 : null, input: 100 + n, cached: n % 5 }),
          orchestration_run_id,
        })),
      ),
    )
    await pool.query(sql.unsafe`delete from events`)
    const cancelPage = (limit: number) =>
      costOf(() =>
        services.write(async tx => {
          const page = await listNestedRuns(tx, { run_id: root, execution_id: null, after: null }, limit)
          return cancelRunPage(tx, services, app.projectId, page)
        }),
      )
    const small = await cancelPage(10)
    const large = await cancelPage(500)
    assert.deepEqual([small.reply, large.reply], [10, 250])
    assert.equal(large.statements, small.statements)
    assert.ok(large.statements <= 12, `${large.statements} statements`)
    const events = (await pool.any(sql.unsafe`
      select id, resource_id from events where name = 'orchestration_runs.cancelled' order by resource_id`)) as {
      id: string
      resource_id: string
    }[]
    assert.equal(events.length, 2 * 260)
    for (const { id, resource_id } of events.filter((_, n) => n % 40 === 0)) {
      const { status, usage, usage_own } = (await app.key.get(`/events/${id}`)).body.data
      const run = await runKind.find(pool, resource_id)
      const alone = await presentRunDetail(pool, run as NonNullable<typeof run>, null)
      assert.deepEqual(
        { status, usage, usage_own },
        { status: 'cancelled', usage: alone.usage, usage_own: alone.usage_own },
      )
    }
  })

  it('that are cancelled do not delay runs of other projects', async () => {
    const { root } = seeds.others
    await grow(seeds.others, 700)
    const other = await app.projectWith(RUN_ACTIONS)
    const graph = { name: 'other', nodes: [set('a')], edges: [] }
    const orchestration_id = (await other.key.post('/orchestrations', graph)).body.id
    assert.equal((await app.key.post(`/orchestration-runs/${root}/cancel`)).status, 200)
    // Each page suspends at the end of its transaction, with all its locks.
    const slow = await worker({ FAULT_POINTS: 'run_followed=freeze:2000' })
    try {
      await eventually(() => slow.output.some(line => line.includes('fault injected')), { what: 'a page' })
      const { status, body } = await other.key.post('/orchestration-runs', { orchestration_id, wait: true })
      assert.deepEqual([status, body.status], [201, 'succeeded'])
      assert.ok((await live(root)) > 0)
    } finally {
      await slow.kill()
    }
    const last = await steadyWorker()
    try {
      await eventually(async () => (await live(root)) === 0, { within: 60_000 })
    } finally {
      await last.stop()
    }
  })

  it('call no model after cancellation, before they are cancelled themselves', async () => {
    const { root, leaf } = seeds.turn
    await grow(seeds.turn, 150)
    const turn = async () => (await app.key.get(`/generations/${leaf.node_executions[0].generation_id}`)).body
    assert.equal((await app.key.post(`/orchestration-runs/${root}/cancel`)).status, 200)
    const double = doubleClient(app.double)
    const asked = async () => (await double.read('GET', '/control/requests')).data.length
    const before = await asked()
    const turns = await steadyWorker(['generation'])
    let stops: Awaited<ReturnType<typeof steadyWorker>> | undefined
    try {
      const waiting = sql.unsafe`
        select count(*)::int from pgboss.job_common where name = 'turn.execute' and state <= 'active'`
      await eventually(async () => (await count(waiting)) === 0)
      assert.equal((await turn()).status, 'pending')
      assert.equal(await asked(), before)
      stops = await steadyWorker()
      await eventually(async () => (await live(root)) === 0, { within: 60_000 })
      const { status, error } = await turn()
      assert.deepEqual([status, error.message], ['failed', 'cancelled'])
    } finally {
      await turns.stop()
      await stops?.stop()
    }
  })

  it('are cancelled by workers with a node of which one run failed', async () => {
    const { root, leaf, middle } = seeds.fail
    await grow(seeds.fail, 150)
    const made = await steadyWorker()
    try {
      assert.equal((await app.key.post(`/orchestration-runs/${leaf.id}/cancel`)).status, 200)
      await eventually(async () => (await live(root)) === 0, { within: 60_000 })
      assert.equal((await app.read(root)).status, 'failed')
      const cancelled = await app.key.get(`/orchestration-runs?orchestration_id=${middle}&status=cancelled`)
      assert.equal(cancelled.body.total, 150)
    } finally {
      await made.stop()
    }
  })

  it('release the run slots of runs that were started during the cancellation', async () => {
    const { pool } = app
    const graph = await app.orchestration([{ id: 'ask', type: 'human' }])
    const [first, parent, waiting] = [
      await app.start(graph, { wait: false }),
      await app.start(graph, { wait: false }),
      await app.start(await app.orchestration([set('a')]), { wait: false }),
    ].map(({ id }) => id as string)
    await pool.query(sql.unsafe`
      update orchestration_runs set status = 'sleeping', queued_at = null where id in (${first}, ${parent})`)
    await pool.query(sql.unsafe`update orchestration_runs set queued_at = now() where id = ${waiting}`)
    await pool.query(sql.unsafe`delete from pgboss.job_common where name ~ '^run[.]'`)
    let deletion: Promise<any> | undefined
    await app.services.write(async tx => {
      await tx.query(sql.unsafe`select from orchestration_runs where id = ${first} for update`)
      deletion = app.key.delete(`/orchestrations/${graph}`)
      const blocked = sql.unsafe`
        select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query ~ 'orchestration_runs'`
      await eventually(() => onSeparateConnection(() => pool.exists(blocked)), { what: 'the deletion waits for a run' })
      await tx.query(sql.unsafe`
        insert into orchestration_runs
        select c.* from orchestration_runs r, json_populate_record(r, json_build_object('id', r.id || '_nested',
          'parent_id', r.id, 'run_depth', 1, 'status', 'running',
          'orchestration_id', (select orchestration_id from orchestration_runs where id = ${waiting}))) c where r.id = ${parent}`)
    })
    assert.equal((await deletion).status, 204)
    assert.equal(await live(parent), 0)
    const wakeUps = sql.unsafe`
      select data ->> 'run_id' from pgboss.job_common where name = 'run.advance' and state = 'created'`
    assert.deepEqual(await pool.anyFirst(wakeUps), [waiting])
  })

  it('are paused by a request that pauses one run, and by workers of which one is lost', async () => {
    const { root } = seeds.pause
    await grow(seeds.pause, 200)
    const path = `/orchestration-runs/${root}/pause`
    const { reply, statements } = await costOf(() => app.key.post(path, { reason: 'why' }))
    assert.equal(reply.status, 200)
    assert.ok(statements < 20, `${statements} statements`)
    const paused = () =>
      count(sql.unsafe`
        select count(*)::int from orchestration_runs
        where root_id = ${root} and pause_requested_at is not null and pause_reason = 'why'`)
    assert.equal(await paused(), 1)
    await survived('run_followed=kill:2', async () => (await paused()) === 403)
  })

  it('are deleted with their orchestration by a request that hides it, and by workers of which one is lost', async () => {
    const { root, top, leaf } = seeds.delete
    await grow(seeds.delete, 510)
    const id = leaf.orchestration_id
    const all = await live(root)
    const { reply, statements } = await costOf(() => app.key.delete(`/orchestrations/${id}`))
    assert.equal(reply.status, 204)
    assert.ok(statements < 20, `${statements} statements`)
    assert.equal((await app.key.get(`/orchestrations/${id}`)).status, 404)
    const listed = (await app.key.get('/orchestrations?limit=100')).body.data
    assert.equal(
      listed.some((each: any) => each.id === id),
      false,
    )
    const start = await app.key.post('/orchestration-runs', { orchestration_id: id })
    assert.deepEqual([start.status, start.body.error.code], [404, 'ORCHESTRATION_NOT_FOUND'])
    assert.equal(await live(root), all)

    // Each of them was waited for by a run above it, which fails with it.
    await survived('run_followed=kill:2', async () => !(await exists(id)) && (await live(root)) === 0)
    assert.equal((await app.key.get(`/orchestration-runs?orchestration_id=${id}`)).body.total, 0)
    assert.equal((await app.read(root)).status, 'failed')
    const [event] = (await app.key.get(`/events?resource_id=${id}`)).body.data
    assert.equal(event.event, 'orchestrations.deleted')
    assert.equal((await app.key.delete(`/orchestrations/${top}`)).status, 204)
  })

  it('of many ended runs are deleted page by page', async () => {
    const id = done.orchestration_id
    await copyRun(app.pool, done.id, 1500)
    const { reply, statements } = await costOf(() => app.key.delete(`/orchestrations/${id}`))
    assert.equal(reply.status, 204)
    assert.ok(statements < 20, `${statements} statements`)
    assert.equal((await app.key.get(`/orchestration-runs?orchestration_id=${id}`)).body.total, 1501)
    await app.pool.query(sql.unsafe`
      update orchestration_runs set status = 'failed', error = '{"code": "X", "message": "x"}' where id = ${done.id}`)
    const retried = await app.key.post(`/orchestration-runs/${done.id}/retry`)
    assert.deepEqual([retried.status, retried.body.error?.code], [404, 'ORCHESTRATION_NOT_FOUND'])
    const last = await steadyWorker()
    try {
      await eventually(async () => !(await exists(id)))
      assert.equal((await app.key.get(`/orchestration-runs?orchestration_id=${id}`)).body.total, 0)
    } finally {
      await last.stop()
    }
  })
})
