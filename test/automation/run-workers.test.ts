import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { runQueue } from '#automation/orchestrations/runs/queue.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { usageOf } from '../control/usage-support.ts'
import { json, type TargetRequest } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, ended, startRunApp } from './fixtures.ts'

const ENV = {
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '1',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
  ORCHESTRATION_NODE_MAX_DELIVERIES: '2',
}

describe('runs and lost workers', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ workers: [], env: ENV }))
  let tool_id: string
  const workers = new Set<TestProcess>()
  const keyOf = (request: TargetRequest | undefined) => request?.headers['idempotency-key']

  before(async () => {
    tool_id = await app.tool()
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })
  afterEach(async () => {
    await steady.stop()
    for (const each of workers) await each.kill()
    workers.clear()
  })

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...ENV, ...env }, ['orchestration'])
    workers.add(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...ENV, ...env }, ['orchestration'])
  const never = () => {}
  const call = (id: string, more: object = {}) => ({ id, type: 'tool', tool_id, ...more })
  const forget = () =>
    app.pool.query(rawQuery(`delete from pgboss.job where name ~ '^(run|node)[.]' and state < 'active'`))

  it('repeat the interrupted call under the same key, and nothing before it', async () => {
    const id = await app.orchestration([call('a'), call('b'), call('c')], chain('a', 'b', 'c'))
    app.target.answer = (request, response) =>
      keyOf(request)?.toString().endsWith(':b:1') ? never() : json({ ok: 1 })(request, response)
    const first = await worker()
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 2)
    await first.kill('SIGKILL')
    app.target.answer = json({ ok: 2 })
    await steadyWorker()
    const done = await app.until(run.id)
    assert.deepEqual(attempts(done), ['a:1:completed', 'b:1:completed', 'c:1:completed'])
    assert.deepEqual(
      app.target.requests.map(keyOf),
      ['a', 'b', 'b', 'c'].map(node => `${run.id}:${node}:1`),
    )
    assert.deepEqual(done.artifacts, { a: { ok: 1 }, b: { ok: 2 }, c: { ok: 2 } })
  })

  it('take over the executions of a killed worker of the same host immediately, whatever its leases', async () => {
    const id = await app.orchestration([call('a'), call('b'), call('c')], chain('a', 'b', 'c'))
    app.target.answer = (request, response) =>
      keyOf(request)?.toString().endsWith(':b:1') ? never() : json({ ok: 1 })(request, response)
    const long = { ORCHESTRATION_NODE_LEASE_SECONDS: '600', ORCHESTRATION_SCHEDULER_INTERVAL_MS: '600000' }
    const lost = async () => {
      const first = await worker(long)
      app.target.requests.length = 0
      const run = await app.start(id, { wait: false })
      await eventually(() => app.target.requests.length === 2)
      return { run, kill: () => first.kill('SIGKILL') }
    }
    const isDone = async ({ id: run }: { id: string }) => {
      assert.deepEqual(attempts(await app.until(run)), ['a:1:completed', 'b:1:completed', 'c:1:completed'])
      assert.deepEqual(
        app.target.requests.map(keyOf),
        ['a', 'b', 'b', 'c'].map(node => `${run}:${node}:1`),
      )
    }
    // A worker that starts.
    const one = await lost()
    await one.kill()
    const answer = app.target.answer
    app.target.answer = json({ ok: 2 })
    const taker = await steadyWorker(long)
    await isDone(one.run)
    await taker.stop()
    // And an active run: at its next heartbeat.
    app.target.answer = answer
    const two = await lost()
    await steadyWorker({ ...long, WORKER_HEARTBEAT_INTERVAL_MS: '500' })
    await two.kill()
    app.target.answer = json({ ok: 2 })
    await isDone(two.run)
  })

  it('take over from a frozen worker after two missed heartbeats; it writes nothing when it resumes', async () => {
    const id = await app.orchestration([call('a'), call('b')], chain('a', 'b'))
    const answers: ((value: object) => void)[] = []
    app.target.answer = (request, response) => {
      answers.push(value => json(value)(request, response))
    }
    const env = { ORCHESTRATION_NODE_LEASE_SECONDS: '600', WORKER_HEARTBEAT_INTERVAL_MS: '1000' }
    const frozen = await steadyWorker(env)
    const run = await app.start(id, { wait: false })
    await eventually(() => answers.length === 1)
    process.kill(frozen.pid, 'SIGSTOP')
    await steadyWorker(env)
    await eventually(() => answers.length === 2)
    answers[1]({ by: 'the second' })
    await eventually(() => answers.length === 3)
    answers[0]({ by: 'the first' })
    process.kill(frozen.pid, 'SIGCONT')
    await eventually(() => frozen.output.some(line => /"work":"node.execute"/.test(line) && /claim_lost/.test(line)))
    answers[2]({ by: 'the second' })
    const done = await app.until(run.id)
    assert.deepEqual(done.artifacts, { a: { by: 'the second' }, b: { by: 'the second' } })
    assert.equal(app.target.requests.length, 3)
  })

  it('take nothing over from a worker that finishes its work during shutdown', async () => {
    const id = await app.orchestration([call('a')])
    let finish = never
    app.target.answer = (request, response) => {
      finish = () => json({ ok: true })(request, response)
    }
    const env = {
      WORKER_HEARTBEAT_INTERVAL_MS: '500',
      ORCHESTRATION_NODE_LEASE_SECONDS: '600',
      SHUTDOWN_GRACE_MS: '60000',
    }
    const first = await worker(env)
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 1)
    const second = await steadyWorker(env)
    first.child.kill('SIGTERM')
    await eventually(() => first.output.some(line => line.includes('shutdown started')))
    const beats = async () =>
      (await app
        .servicesOf(app.projectId)
        .pool.oneFirst(sql.unsafe`select count(*)::int from worker_heartbeats where holder is not null`)) as number
    // Long enough for the second to miss five heartbeats.
    await new Promise(resolve => setTimeout(resolve, 3000))
    assert.equal(await beats(), 2)
    assert.equal(app.target.requests.length, 1)
    finish()
    assert.deepEqual(await first.exited, { code: 0, signal: null })
    assert.deepEqual(attempts(await app.until(run.id)), ['a:1:completed'])
    assert.ok(!second.output.some(line => line.includes('leases of lost workers ended')))
  })

  it('abandon an attempt that killed several workers, and retry by the policy of the node', async () => {
    const id = await app.orchestration([call('a', { retry: { max_attempts: 2, backoff: { delay_ms: 0 } } })])
    app.target.answer = never
    const run = await app.start(id, { wait: false })
    for (const count of [1, 2]) {
      const one = await worker()
      await eventually(() => app.target.requests.length === count)
      await one.kill('SIGKILL')
    }
    app.target.answer = json({ ok: true })
    await steadyWorker()
    const done = await app.until(run.id)
    assert.deepEqual(attempts(done), ['a:1:failed', 'a:2:completed'])
    const { code, meta } = done.node_executions[0].error
    assert.deepEqual([code, meta.reason], ['EXECUTOR_LOST', 'executor_lost'])
    assert.deepEqual(
      app.target.requests.map(keyOf),
      [1, 1, 2].map(attempt => `${run.id}:a:${attempt}`),
    )
    const used = (await usageOf(app, app.projectId)).filter(use => use.meter_type === 'tool_execution')
    assert.deepEqual(
      used.filter(use => use.orchestration_run_id === run.id).map(use => use.idempotency_key),
      [1, 2].map(attempt => `tool:${run.id}:a:${attempt}`),
    )
  })

  it('continue immediately with the executions that a stopping worker requeues', async () => {
    const long = { ORCHESTRATION_NODE_LEASE_SECONDS: '600' }
    const id = await app.orchestration([call('a')])
    app.target.answer = never
    const first = await worker({ ...long, SHUTDOWN_GRACE_MS: '0' })
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 1)
    assert.deepEqual(await first.kill('SIGTERM'), { code: 0, signal: null })
    app.target.answer = json({ ok: true })
    await steadyWorker(long)
    const done = await app.until(run.id)
    assert.deepEqual(attempts(done), ['a:1:completed'])
    assert.equal(new Set(app.target.requests.map(keyOf)).size, 1)
  })

  it('finish active executions during the grace period and start nothing more', async () => {
    const id = await app.orchestration([call('a'), call('b')], chain('a', 'b'))
    let finish = never
    app.target.answer = (request, response) => {
      finish = () => json({ ok: true })(request, response)
    }
    const env = { ORCHESTRATION_NODE_LEASE_SECONDS: '600' }
    const first = await worker({ ...env, SHUTDOWN_GRACE_MS: '0', ORCHESTRATION_SHUTDOWN_GRACE_MS: '60000' })
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 1)
    first.child.kill('SIGTERM')
    await eventually(() => first.output.some(line => line.includes('shutdown started')))
    // Work that is not waited for is aborted immediately and has a second to finish.
    await new Promise(resolve => setTimeout(resolve, 3000))
    finish()
    assert.deepEqual(await first.exited, { code: 0, signal: null })
    assert.deepEqual(attempts(await app.read(run.id)), ['a:1:completed', 'b:1:running'])
    app.target.answer = json({ ok: true })
    await steadyWorker(env)
    assert.deepEqual(attempts(await app.until(run.id)), ['a:1:completed', 'b:1:completed'])
    assert.equal(app.target.requests.length, 2)
  })

  it('limit attempts without a timeout by the timeout of the deployment', async () => {
    app.target.answer = never
    await steadyWorker({ ORCHESTRATION_NODE_TIMEOUT_MS: '300' })
    const own = call('b', { timeout: '1h' })
    const run = await app.start(await app.orchestration([call('a'), own]), { wait: false })
    const { error, failed_node_id } = await app.until(run.id)
    assert.deepEqual([failed_node_id, error.meta.reason], ['a', 'timeout'])
  })

  it('execute no more nodes concurrently than configured', async () => {
    const held: (() => void)[] = []
    let most = 0
    app.target.answer = (request, response) => {
      held.push(() => json({ ok: true })(request, response))
      most = Math.max(most, held.length)
    }
    const single = await app.orchestration([call('a')])
    const fan = await app.orchestration(Array.from({ length: 8 }, (_, n) => call(`f${n}`)))
    await steadyWorker({ ORCHESTRATION_WORKER_CONCURRENCY: '4' })
    const runs = []
    for (const id of [single, single, fan, single, single, single]) runs.push(await app.start(id, { wait: false }))
    for (const { id } of runs) await app.until(id, ({ status }) => status === 'running')
    for (let left = 13; left > 0; left--) {
      const answer = await eventually(() => (held.length >= Math.min(3, left) ? held.shift() : undefined))
      answer()
    }
    for (const { id } of runs) assert.equal((await app.until(id)).status, 'succeeded')
    assert.ok(most <= 4, `${most} concurrently`)
  })

  it('advance no more runs concurrently than configured', async () => {
    const id = await app.orchestration([{ id: 'x', type: 'transform', expression: 1 }])
    const runs: string[] = []
    for (let n = 0; n < 3; n++) runs.push((await app.start(id, { wait: false })).id)
    const held = runs.slice(0, 2)
    await app.services.pool.transaction(async tx => {
      const messages = (state: string) =>
        tx.anyFirst(sql.unsafe`
          select data->>'run_id' from pgboss.job where name = ${runQueue.name} and state = ${state}::pgboss.job_state
            and data->>'run_id' = any(${sql.array(runs, 'text')}) order by 1`)
      await tx.query(sql.unsafe`
        select from orchestration_runs where id = any(${sql.array(held, 'text')}) for update`)
      await steadyWorker({ ORCHESTRATION_ADVANCE_CONCURRENCY: '2', PROJECT_WORKER_SHARE: '1' })
      await eventually(async () => isDeepStrictEqual(await messages('active'), held.toSorted()))
      // One claim fills all slots that are free.
      assert.deepEqual(await messages('created'), runs.slice(2))
    })
    for (const run of runs) assert.equal((await app.until(run)).status, 'succeeded')
  })

  it('discard the late result of a worker that lost its lease', async () => {
    const id = await app.orchestration([call('a')])
    let answerFirst = never
    app.target.answer = (request, response) => {
      answerFirst = () => json({ from: 'first' })(request, response)
    }
    const first = await steadyWorker()
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 1)
    process.kill(first.pid, 'SIGSTOP')
    app.target.answer = json({ from: 'second' })
    await steadyWorker()
    const done = await app.until(run.id)
    assert.deepEqual(done.output, { a: { from: 'second' } })
    answerFirst()
    process.kill(first.pid, 'SIGCONT')
    await eventually(() => first.output.some(line => line.includes('claim_lost')))
    assert.deepEqual(await app.read(run.id), done)
    const used = await app.key.get(`/usage/events?orchestration_run_id=${run.id}`)
    assert.equal(used.body.data.filter((event: any) => event.meter_type === 'compute_execution').length, 1)
  })

  it('abort the calls of a cancelled run and discard their results', async () => {
    const id = await app.orchestration([call('a'), call('b')], chain('a', 'b'))
    let closed = false
    app.target.answer = (_request, response) =>
      response.on('close', () => {
        closed = true
      })
    await steadyWorker()
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 1)
    const cancelled = (await app.key.post(`/orchestration-runs/${run.id}/cancel`)).body
    assert.equal(cancelled.status, 'cancelled')
    assert.deepEqual(attempts(cancelled), ['a:1:cancelled'])
    await eventually(() => closed, { what: 'the call to end' })
    assert.deepEqual(await app.read(run.id), cancelled)
  })

  for (const point of ['run_advanced', 'run_committed', 'node_taken', 'node_called'])
    it(`neither lose nor repeat a step when a worker dies at ${point}`, async () => {
      const id = await app.orchestration(
        [
          { id: 'x', type: 'emit_event', event_type: 'tests.done', input_mapping: { point } },
          call('a'),
          { id: 'y', type: 'transform', expression: { var: 'nodes.a.ok' } },
        ],
        chain('x', 'a', 'y'),
      )
      const run = await app.start(id, { wait: false })
      const broken = await worker({ FAULT_POINTS: `${point}=kill` })
      assert.equal((await broken.exited).signal, 'SIGKILL')
      await steadyWorker()
      const done = await app.until(run.id)
      assert.deepEqual(attempts(done), ['x:1:completed', 'a:1:completed', 'y:1:completed'], JSON.stringify(done.error))
      assert.equal(app.target.requests.length, point === 'node_called' ? 2 : 1)
      assert.equal(new Set(app.target.requests.map(keyOf)).size, 1)
      const told = await app.key.get(`/events?resource_id=${run.id}`)
      assert.deepEqual(told.body.data.map(({ event }: any) => event).sort(), [
        'orchestration_runs.started',
        'orchestration_runs.succeeded',
        'tests.done',
      ])
    })

  it('sleep through a time without workers, and wake once', async () => {
    const id = await app.orchestration([{ id: 'd', type: 'delay', duration: '1s' }, call('a')], chain('d', 'a'))
    const first = await worker()
    const run = await app.start(id, { wait: false })
    const asleep = await app.until(run.id, ({ status }) => status === 'sleeping')
    assert.deepEqual(asleep.active_nodes, ['d'])
    await first.kill()
    await forget()
    await eventually(() => Date.now() > Date.parse(asleep.wake_at))
    await Promise.all([steadyWorker(), steadyWorker()])
    const done = await app.until(run.id)
    assert.equal(done.status, 'succeeded')
    assert.equal(app.target.requests.length, 1)
  })

  it('are found by a sweep when messages are lost', async () => {
    const rule = await app.key.post('/guardrails', { name: 'ask', document: { class: 'C' } })
    const guarded = await app.tool({ guardrail_ids: [rule.body.id] })
    const leaf = await app.orchestration([{ id: 'h', type: 'human' }])
    const first = await worker()
    const gated = await app.run([{ id: 'g', type: 'tool', tool_id: guarded }])
    const parent = await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: leaf }])
    const asked = await app.run([{ id: 'h', type: 'human' }])
    await first.kill()
    const child = parent.required_action.orchestration_run_id
    await app.key.post(`/approvals/${gated.required_action.approval_id}/approve`)
    for (const id of [child, asked.id])
      await app.key.post(`/orchestration-runs/${id}/human-input`, { node_id: 'h', output: { n: 1 }, wait: false })
    const fresh = await app.start(await app.orchestration([call('a')]), { wait: false })
    await forget()
    await steadyWorker()
    for (const { id } of [fresh, asked, gated, parent])
      assert.equal((await app.until(id, ended)).status, 'succeeded', id)
  })
})
