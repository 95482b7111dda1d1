import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { scriptOf } from '../support/scripts.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { json, startTarget, type Target } from './tool-target.ts'

const FAST = {
  GENERATION_SWEEP_SECONDS: '1',
  PROVIDER_MAX_RETRIES: '0',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}
const ACTIONS = ['agents:CreateAgentGeneration', 'agents:GetAgent', 'generations:*', 'traces:*']

describe('recovery record of a turn', function () {
  this.timeout(90_000)
  let app: AgentApp
  let target: Target
  const processes: TestProcess[] = []
  const steady = steadyWorkers()

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['generation'])
    processes.push(made)
    return made
  }
  const steadyWorker = () => steady.start(app.databaseUrl, FAST, ['generation'])
  /** Names of the workers that run now, and have a heartbeat. */
  const workers = async (): Promise<string[]> => {
    const beats = await app.rows(`select instance_id from worker_heartbeats where holder is not null and kinds <> '{}'`)
    return [...new Set(beats.map(({ instance_id }) => instance_id))]
  }
  /** Random ID of a process, with which its name ends. */
  const idOf = (name: string | undefined) => name?.split(':').at(-1)
  /** Ends the leases of a process that cannot renew them. No other lease expires, however busy the machine is. */
  const expireLeases = () =>
    app.rows(`update pgboss.job_common set heartbeat_on = now() - interval '60.001 s' where state = 'active'`)
  const bound = (name: string, idempotent: boolean) => ({
    tool: { name, execute: { url: `${target.url}/${name}` }, idempotent },
  })
  const start = async (agent: string, ...replies: object[]): Promise<string> =>
    (await app.key.post(`/agents/${agent}/generate`, { prompt: scriptOf(...replies) })).body.generation_id
  const call = (...names: string[]) => ({ tool_calls: names.map(name => ({ name, args: { secret: 'hush' } })) })
  const ended = (id: string) =>
    eventually(async () => ['completed', 'failed'].includes((await app.key.get(`/generations/${id}`)).body.status), {
      what: `end of ${id}`,
      within: 60_000,
    })
  const recovery = async (id: string) => {
    const { status, body } = await app.key.get(`/generations/${id}/recovery`)
    assert.equal(status, 200, JSON.stringify(body))
    assert.ok(!JSON.stringify(body).includes('hush'))
    return body
  }
  const ends = ({ attempts }: any) => attempts.map(({ number, ended_by }: any) => `${number} ${ended_by}`)
  const states = ({ calls }: any) => calls.map(({ tool, state }: any) => `${tool} ${state}`)

  before(async () => {
    target = await startTarget()
    app = await startAgentApp({ workers: [], env: FAST, actions: ACTIONS })
  })
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json({ ok: true })
  })
  afterEach(async () => {
    await steady.stop()
    for (const each of processes.splice(0)) {
      each.child.kill('SIGCONT')
      if (each.child.exitCode === null && each.child.signalCode === null) await each.kill()
    }
  })
  after(async () => {
    await app?.close()
    await target?.close()
  })

  it('of a turn without trouble has one attempt and stores nothing', async () => {
    await steadyWorker()
    const agent = await app.agent({ tool_bindings: [bound('act', false)] })
    const id = await start(agent, call('act'), { text: 'done' })
    await ended(id)
    const { attempts, calls, audit } = await recovery(id)
    const { started_at, completed_at } = (await app.key.get(`/generations/${id}`)).body
    assert.deepEqual(attempts, [
      { number: 1, instance_id: null, started_at, lease_expires_at: null, ended_at: completed_at, ended_by: 'settled' },
    ])
    const { started_at: called, ended_at, tool_call_id, ...rest } = calls[0]
    assert.deepEqual(rest, {
      step: 1,
      tool: 'act',
      attempt: 1,
      state: 'done',
      idempotency_key: target.requests[0].headers['idempotency-key'],
    })
    assert.equal(rest.idempotency_key, `${id}:${tool_call_id}`)
    assert.ok(started_at <= called && called <= ended_at && ended_at <= completed_at)
    assert.equal(audit, null)
    assert.deepEqual(await app.rows('select from generation_interruptions'), [])
  })

  it('of a turn in progress has the process and its lease', async () => {
    target.answer = () => {}
    await worker()
    const agent = await app.agent({ tool_bindings: [bound('act', false)] })
    const id = await start(agent, call('act'), { text: 'done' })
    await eventually(() => target.requests.length === 1)
    const body = await recovery(id)
    const [{ instance_id, started_at, lease_expires_at, ended_by }] = body.attempts
    const names = await workers()
    assert.deepEqual([instance_id], names.map(idOf))
    const asAdmin = (await app.admin.get(`/generations/${id}/recovery`)).body
    assert.deepEqual([asAdmin.attempts[0].instance_id], names)
    assert.ok(lease_expires_at > started_at)
    assert.equal(ended_by, null)
    assert.deepEqual(states(body), ['act unknown'])
  })

  it('of a killed worker has repeated and withheld calls', async () => {
    let isHeld = true
    target.answer = (request, response) => {
      if (!isHeld) json({ ok: true })(request, response)
    }
    const first = await worker()
    const agent = await app.agent({ tool_bindings: [bound('act', false), bound('again', true)] })
    const id = await start(agent, call('act', 'again'), { text: 'done' })
    await eventually(() => target.requests.length === 2)
    const [killed] = await workers()
    await first.kill()
    isHeld = false
    await steadyWorker()
    await ended(id)
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['1 lease_lost', '2 settled'])
    const [lost, last] = body.attempts
    assert.equal(lost.instance_id, idOf(killed))
    assert.equal(lost.ended_at, lost.lease_expires_at)
    assert.ok(lost.started_at < lost.ended_at && lost.ended_at <= last.started_at, JSON.stringify(body.attempts))
    assert.ok(last.instance_id !== null && last.instance_id !== lost.instance_id)
    assert.deepEqual(states(body), ['act withheld', 'again repeated'])
    const [withheld, repeated] = body.calls
    assert.deepEqual([withheld.attempt, withheld.started_at], [null, null])
    assert.equal(repeated.attempt, 2)
    const keys = target.requests.filter(({ url }) => url === '/again').map(({ headers }) => headers['idempotency-key'])
    assert.deepEqual(keys, [repeated.idempotency_key, repeated.idempotency_key])
  })

  it('of a frozen worker has the end of its lease', async () => {
    let isHeld = true
    target.answer = (request, response) => {
      if (!isHeld) json({ ok: true })(request, response)
    }
    const frozen = await worker()
    const agent = await app.agent({ tool_bindings: [bound('again', true)] })
    const id = await start(agent, call('again'), { text: 'done' })
    await eventually(() => target.requests.length === 1)
    const [name] = await workers()
    process.kill(frozen.pid, 'SIGSTOP')
    await expireLeases()
    isHeld = false
    await steadyWorker()
    await ended(id)
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['1 lease_lost', '2 settled'])
    assert.equal(body.attempts[0].instance_id, idOf(name))
    assert.notEqual(body.attempts[0].lease_expires_at, null)
    assert.deepEqual(states(body), ['again repeated'])
  })

  it('of a stopped worker has a released attempt', async () => {
    let isHeld = true
    target.answer = (request, response) => {
      if (!isHeld) json({ ok: true })(request, response)
    }
    const stopped = await worker({ SHUTDOWN_GRACE_MS: '200' })
    const agent = await app.agent({ tool_bindings: [bound('again', true)] })
    const id = await start(agent, call('again'), { text: 'done' })
    await eventually(() => target.requests.length === 1)
    const [name] = await workers()
    await stopped.kill('SIGTERM')
    const between = await recovery(id)
    assert.deepEqual(ends(between), ['1 released'])
    isHeld = false
    await steadyWorker()
    await ended(id)
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['1 released', '2 settled'])
    const [{ instance_id, lease_expires_at, ended_at }, { started_at }] = body.attempts
    assert.deepEqual([instance_id, lease_expires_at], [idOf(name), null])
    assert.ok(ended_at <= started_at)
    assert.deepEqual(states(body), ['again repeated'])
  })

  it('of a cancelled turn says so', async () => {
    target.answer = () => {}
    await steadyWorker()
    const agent = await app.agent({ tool_bindings: [bound('act', false)] })
    const id = await start(agent, call('act'), { text: 'done' })
    await eventually(() => target.requests.length === 1)
    assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
    await ended(id)
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['1 cancelled'])
    assert.deepEqual(states(body), ['act unknown'])
  })

  it('has lost web processes that execute turns', async () => {
    const env = { ...FAST, WEB_EXECUTES: 'true', FAULT_POINTS: 'before_model=kill' }
    const web = await startProcess('web', app.databaseUrl, env)
    processes.push(web)
    const headers = { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' }
    const body = JSON.stringify({ prompt: 'x' })
    const url = `${web.url}/api/v1/agents/${app.agentId}/generate?wait=true`
    await assert.rejects(fetch(url, { method: 'POST', headers, body }))
    await steadyWorker()
    const [{ id }] = await app.rows('select id from generations order by created_at desc limit 1')
    await ended(id)
    const found = await recovery(id)
    assert.deepEqual(ends(found), ['1 lease_lost', '2 settled'])
    assert.match(found.attempts[0].instance_id, /^[0-9a-f-]{36}$/)
    const { attempts } = (await app.admin.get(`/generations/${id}/recovery`)).body
    assert.ok(attempts[0].instance_id.endsWith(`:web:${found.attempts[0].instance_id}`))
  })

  it('of a turn that waited for its client stores no attempts', async () => {
    await steadyWorker()
    const agent = await app.agent({ tool_bindings: [{ tool: { name: 'ask', type: 'client' } }] })
    const id = await start(agent, call('ask'), { text: 'done' })
    const paused = await eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'requires_action' ? body : null
    })
    assert.deepEqual(ends(await recovery(id)), ['1 released'])
    const [{ id: tool_call_id }] = paused.required_action.tool_calls
    const outputs = { tool_outputs: [{ tool_call_id, output: 1 }] }
    const resumed = await app.key.post(`/agents/${agent}/generate/${id}/tool-outputs`, outputs)
    assert.equal(resumed.status, 200, JSON.stringify(resumed.body))
    const body = await recovery(id)
    assert.deepEqual(ends(body), ['1 released', '2 settled'])
    // Made by the client.
    assert.deepEqual(body.calls, [])
    assert.deepEqual(await app.rows('select from generation_interruptions where generation_id = $1', [id]), [])
  })

  it('is shown to callers with the permission, in parts', async () => {
    await steadyWorker()
    const id = await start(app.agentId, { text: 'done' })
    await ended(id)
    const path = `/generations/${id}/recovery`
    assert.equal((await (await app.project()).key.get(path)).status, 404)
    const other = await app.user(undefined, [
      { effect: 'allow', actions: ['generations:ListGenerations'], resources: [`srn:${app.projectId}:*`] },
    ])
    assert.equal((await other.get(path)).status, 403)
    assert.equal((await app.anonymous.get(path)).status, 401)
    // Any number of other entries of the project.
    await app.rows(
      `insert into audit_entries (id, project_id, action, resource_public_id, status, created_at)
       select 'aud_' || n, $1, 'agents:GetAgent', 'agt_' || n, 200, now() from generate_series(1, 20001) n`,
      [app.projectId],
    )
    await app.key.post(`/generations/${id}/cancel`)
    const { audit } = (await app.admin.get(path)).body
    assert.deepEqual(
      audit.map(({ action }: any) => action),
      ['generations:CancelGeneration'],
    )
    const entry = await app.admin.get(`/audit-log/${audit[0].id}`)
    assert.equal(entry.body.resource_public_id, id)
    await app.admin.get(`/audit-log/verify?project_id=${app.projectId}`)
    const sealed = (await app.admin.get(path)).body.audit
    assert.match(sealed[0].hash, /^[0-9a-f]{64}$/)
    assert.equal((await app.admin.delete(`/generations/${id}/content`)).status, 200)
    assert.equal((await app.admin.get(path)).body.calls, null)
    await app.rows(
      `insert into audit_entries (id, project_id, action, resource_public_id, status, created_at)
       select 'aud_refused_' || n, $1, 'generations:AbortGeneration', $2, 409, now() - interval '1 hour'
       from generate_series(1, 100) n`,
      [app.projectId, id],
    )
    const newest = (await app.admin.get(path)).body.audit.map(({ action }: any) => action)
    assert.equal(newest.length, 100)
    assert.equal(newest[0], 'generations:AbortGeneration')
    assert.ok(newest.slice(-2).includes('generations:CancelGeneration'), newest.slice(-2).join())
  })

  it('is deleted with its turn', async () => {
    const first = await worker({ FAULT_POINTS: 'before_model=kill' })
    const agent = await app.agent()
    const id = await start(agent, { text: 'done' })
    await first.exited
    await steadyWorker()
    await ended(id)
    const stored = () => app.rows('select from generation_interruptions where generation_id = $1', [id])
    assert.equal((await stored()).length, 1)
    assert.equal((await app.admin.delete(`/agents/${agent}?force=true`)).status, 204)
    assert.equal((await stored()).length, 0)
  })
})
