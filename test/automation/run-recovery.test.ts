import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { chain, startRunApp } from './fixtures.ts'

const ENV = {
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
  ORCHESTRATION_NODE_MAX_DELIVERIES: '2',
}

describe('recovery record of a run', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ workers: [], env: ENV }))
  let tool_id: string
  let name: string
  const processes: TestProcess[] = []
  const steady = steadyWorkers()

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...ENV, ...env }, ['orchestration'])
    processes.push(made)
    return made
  }
  const steadyWorker = () => steady.start(app.databaseUrl, ENV, ['orchestration'])
  const workers = async (): Promise<string[]> =>
    (await app.rows(`select instance_id from worker_heartbeats where holder is not null and kinds <> '{}'`)).map(
      ({ instance_id }) => instance_id,
    )
  /** Random ID of a process, with which its name ends. */
  const idOf = (name: string | undefined) => name?.split(':').at(-1)
  /** Starts a run of two tool nodes whose second call is not answered until `free`. */
  const held = async () => {
    const id = await app.orchestration([node('a'), node('b')], chain('a', 'b'))
    let isHeld = true
    app.target.answer = (request, response) => {
      const isSecond = String(request.headers['idempotency-key']).endsWith(':b:1')
      if (!isHeld || !isSecond) json({ ok: 1 })(request, response)
    }
    const run = await app.start(id, { wait: false })
    await eventually(() => app.target.requests.length === 2)
    return {
      id: run.id as string,
      free: () => {
        isHeld = false
      },
    }
  }
  /** Ends the leases of a process that cannot renew them. No other lease expires, however busy the machine is. */
  const expireLeases = () =>
    app.rows(
      `update orchestration_node_executions set leased_until = now() - interval '1 ms' where leased_until > now()`,
    )
  const node = (id: string) => ({ id, type: 'tool', tool_id, input_mapping: { secret: 'hush' } })
  const recovery = async (id: string) => {
    const { status, body } = await app.key.get(`/orchestration-runs/${id}/recovery`)
    assert.equal(status, 200, JSON.stringify(body))
    assert.ok(!JSON.stringify(body).includes('hush'))
    return body
  }
  const ends = ({ attempts }: any) =>
    attempts.map(({ node_id, number, ended_by }: any) => `${node_id} ${number} ${ended_by}`)
  const states = ({ calls }: any) => calls.map(({ step, tool, state }: any) => `${step} ${tool} ${state}`)

  before(async () => {
    tool_id = await app.tool()
    name = (await app.admin.get(`/tools/${tool_id}`)).body.name
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })
  afterEach(async () => {
    await steady.stop()
    for (const each of processes.splice(0)) {
      each.child.kill('SIGCONT')
      if (each.child.exitCode === null && each.child.signalCode === null) await each.kill()
    }
  })

  it('of a run without trouble has one attempt for each node and stores nothing', async () => {
    await steadyWorker()
    const orchestration = await app.orchestration([node('a'), node('b')], chain('a', 'b'))
    const run = await app.start(orchestration)
    assert.equal(run.status, 'succeeded')
    const body = await recovery(run.id)
    assert.deepEqual(ends(body), ['a 1 settled', 'b 1 settled'])
    assert.deepEqual(states(body), [`a ${name} done`, `b ${name} done`])
    assert.deepEqual(
      body.calls.map((call: any) => call.idempotency_key),
      app.target.requests.map(({ headers }) => headers['idempotency-key']),
    )
    assert.equal(body.audit, null)
    assert.deepEqual(await app.rows('select from node_interruptions'), [])
  })

  it('of a killed worker has the repeated call', async () => {
    const first = await worker()
    const { id, free } = await held()
    const [killed] = await workers()
    const before = await recovery(id)
    assert.deepEqual(ends(before), ['a 1 settled', 'b 1 null'])
    assert.equal(before.attempts[1].instance_id, idOf(killed))
    const asAdmin = (await app.admin.get(`/orchestration-runs/${id}/recovery`)).body
    assert.equal(asAdmin.attempts[1].instance_id, killed)
    assert.deepEqual(states(before), [`a ${name} done`, `b ${name} unknown`])
    await first.kill()
    free()
    await steadyWorker()
    assert.equal((await app.until(id)).status, 'succeeded')
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['a 1 settled', 'b 1 lease_lost', 'b 2 settled'])
    const [, lost, last] = body.attempts
    assert.equal(lost.instance_id, idOf(killed))
    assert.ok(last.instance_id !== null && last.instance_id !== lost.instance_id)
    assert.ok(lost.started_at <= lost.ended_at && lost.ended_at <= last.started_at, JSON.stringify(body.attempts))
    assert.deepEqual(states(body), [`a ${name} done`, `b ${name} repeated`])
    assert.deepEqual([body.calls[1].attempt, body.calls[1].idempotency_key], [2, `${id}:b:1`])
  })

  it('of a frozen worker has the end of its lease', async () => {
    const frozen = await worker({ WORKER_HEARTBEAT_INTERVAL_MS: '60000' })
    const { id, free } = await held()
    const [stopped] = await workers()
    process.kill(frozen.pid, 'SIGSTOP')
    await expireLeases()
    free()
    await steadyWorker()
    assert.equal((await app.until(id)).status, 'succeeded')
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['a 1 settled', 'b 1 lease_lost', 'b 2 settled'])
    assert.equal(body.attempts[1].instance_id, idOf(stopped))
    assert.equal(body.attempts[1].lease_expires_at, body.attempts[1].ended_at)
  })

  it('of a stopped worker has a released attempt', async () => {
    const grace = { SHUTDOWN_GRACE_MS: '200', ORCHESTRATION_SHUTDOWN_GRACE_MS: '200' }
    const stopped = await worker(grace)
    const { id, free } = await held()
    const [before] = await workers()
    await stopped.kill('SIGTERM')
    assert.deepEqual(ends(await recovery(id)), ['a 1 settled', 'b 1 released'])
    free()
    await steadyWorker()
    assert.equal((await app.until(id)).status, 'succeeded')
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['a 1 settled', 'b 1 released', 'b 2 settled'])
    assert.equal(body.attempts[1].instance_id, idOf(before))
    assert.deepEqual(states(body), [`a ${name} done`, `b ${name} repeated`])
  })

  it('has the call that is not made again after too many lost workers', async () => {
    const first = await worker()
    const { id } = await held()
    await first.kill()
    const second = await worker()
    await eventually(() => app.target.requests.length === 3)
    await second.kill()
    // A lease that expires before the process is known to be gone.
    await expireLeases()
    await steadyWorker()
    assert.equal((await app.until(id)).status, 'failed')
    const body = await recovery(id)
    assert.deepEqual(ends(body).slice(0, 3), ['a 1 settled', 'b 1 lease_lost', 'b 2 lease_lost'])
    assert.deepEqual(states(body), [`a ${name} done`, `b ${name} withheld`])
  })

  it('of a poll has the key of its last call', async () => {
    const first = await worker()
    const poll = {
      id: 'p',
      type: 'poll',
      tool_id,
      exit_condition: { '>=': [{ var: 'attempt' }, 3] },
      interval: '1ms',
      max_iterations: 5,
    }
    const orchestration = await app.orchestration([poll])
    const sent = () => app.target.requests.map(({ headers }) => String(headers['idempotency-key']).split(':').at(-1))
    let isHeld = true
    app.target.answer = (request, response) => {
      if (!isHeld || sent().length !== 2) json({ ok: 1 })(request, response)
    }
    const { id } = await app.start(orchestration, { wait: false })
    const keys = async () => {
      const { node_executions } = await app.read(id)
      const { calls } = await recovery(id)
      return [...calls.map((call: any) => `${call.idempotency_key} ${call.state}`), node_executions[0].idempotency_key]
    }
    await eventually(() => sent().length === 2)
    assert.deepEqual(await keys(), [`${id}:p:1:2 unknown`, `${id}:p:1:2`])
    await first.kill()
    isHeld = false
    const second = await worker()
    assert.equal((await app.until(id)).status, 'succeeded')
    assert.deepEqual(sent(), ['1', '2', '2', '3'])
    assert.deepEqual(await keys(), [`${id}:p:1:3 repeated`, `${id}:p:1:3`])
    app.target.requests.length = 0
    isHeld = true
    const lost = await app.start(orchestration, { wait: false })
    await eventually(() => sent().length === 2)
    await second.kill()
    await app.rows(`update orchestration_node_executions set deliveries = 2 where run_id = $1`, [lost.id])
    await steadyWorker()
    assert.equal((await app.until(lost.id)).status, 'failed')
    const { calls } = await recovery(lost.id)
    assert.deepEqual(
      calls.map((call: any) => [call.idempotency_key, call.state]),
      [[`${lost.id}:p:1:2`, 'withheld']],
    )
  })

  it('of a cancelled run says so', async () => {
    await steadyWorker()
    const { id } = await held()
    assert.equal((await app.key.post(`/orchestration-runs/${id}/cancel`, {})).status, 200)
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['a 1 settled', 'b 1 cancelled'])
    assert.deepEqual(states(body), [`a ${name} done`, `b ${name} unknown`])
  })

  it('is shown to callers with the permission, in parts', async () => {
    await steadyWorker()
    const orchestration = await app.orchestration([node('a')])
    const run = await app.start(orchestration)
    const path = `/orchestration-runs/${run.id}/recovery`
    assert.equal((await (await app.project()).key.get(path)).status, 404)
    const other = await app.user(undefined, [
      { effect: 'allow', actions: ['orchestrations:ListRuns'], resources: [`srn:${app.projectId}:*`] },
    ])
    assert.equal((await other.get(path)).status, 403)
    const { audit } = (await app.admin.get(path)).body
    assert.deepEqual(
      audit.map(({ action }: any) => action),
      ['orchestrations:StartRun'],
    )
  })
})
