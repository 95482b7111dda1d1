import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { loadTurn, loadWithMessage, readLoadedTurn } from '#execution/generations/loop/turn-store.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'

/** No sweep: a turn whose wake-up is lost stays where it is. */
const NO_SWEEP = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '3600' }

const isMessageDone = (line: string): boolean =>
  line.includes('"queue":"turn.execute"') && line.includes('"outcome":"done"')

describe('turns loaded by the claim of their message', function () {
  this.timeout(60_000)
  let app: AgentApp
  let double: ReturnType<typeof client>
  const processes: TestProcess[] = []
  const steady = steadyWorkers()

  const worker = async (env: Record<string, string>) => {
    const made = await startProcess('worker', app.databaseUrl, { ...NO_SWEEP, ...env }, ['generation'])
    processes.push(made)
    return made
  }

  const model = async (name: string, reply: object = { text: 'answer' }) => {
    await double.put(name, { rules: [{ reply }] })
    return { agent: await app.agent({ model: `${name}/m` }), calls: async () => (await double.requests(name)).length }
  }

  /** Starts a turn whose worker has its message, and the turn as of then, and does nothing for some seconds. */
  async function frozenTurn(agent: string, caller = app.key) {
    const { body } = await caller.post(`/agents/${agent}/generate`, { prompt: 'x' })
    const id: string = body.generation_id
    const { output } = await worker({ FAULT_POINTS: `message_started=freeze:3000@${id}` })
    await eventually(() => output.some(line => line.includes('fault injected')), { what: 'claim of the message' })
    return { id, output }
  }

  const ended = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: `end of ${id}` },
    )

  const eventsOf = async (id: string): Promise<string[]> =>
    (await app.key.get(`/events?resource_id=${id}`)).body.data.map(({ event }: { event: string }) => event).sort()

  const attemptOf = (id: string) => app.pool.oneFirst(sql.unsafe`select attempt from generations where id = ${id}`)

  before(async () => {
    app = await startAgentApp({ workers: [] })
    double = client(app.double)
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.splice(0).map(each => each.kill()))
  })
  after(() => app?.close())

  it('are as if they were loaded alone, unless they are large', async () => {
    const parameters = '{"type":"object","properties":{"z":{"type":"number","maximum":1.50},"a":{"type":"string"}}}'
    const execute = { method: 'GET', url: `${app.url}/healthz` }
    const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'ordered', execute })
    await app.pool.query(sql.unsafe`update tools set parameters = ${parameters}::json where id = ${tool.body.id}`)
    const agent = await app.agent({ tool_bindings: [{ tool_id: tool.body.id }] })
    const metadata = { big: 12345678901234567890n.toString(), at: '2026-01-01T00:00:00+02:00', nested: [1.5, null] }
    const request = { prompt: 'x', metadata, timeout_seconds: 60 }
    const { body } = await app.key.post(`/agents/${agent}/generate`, request)
    const id: string = body.generation_id
    const readText = () =>
      app.pool.maybeOneFirst(sql.unsafe`
        select r.value from (select jsonb_build_object('generation_id', ${id}::text) as data) claimed
        cross join lateral (${loadWithMessage()}) r (value)`)
    const alone = await loadTurn(app.pool, id)
    assert.equal(JSON.stringify(readLoadedTurn((await readText()) as string)), JSON.stringify(alone))
    assert.deepEqual([alone?.generation.id, alone?.tools.length], [id, 1])
    // A text that PostgreSQL stores in a few hundred bytes.
    const large = { type: 'object', description: 'x'.repeat(40 * 1024) }
    assert.equal((await app.admin.patch(`/tools/${tool.body.id}`, { parameters: large })).status, 200)
    assert.equal(await readText(), null)
    assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
  })

  it('are loaded again if another worker has had the message since', async () => {
    const { agent, calls } = await model('requeued')
    const { id } = await frozenTurn(agent)
    // As by a worker that started the turn and requeued it between the snapshot and the lock of this claim.
    await app.pool.query(sql.unsafe`
      update generations set status = 'in_progress', attempt = 1, handed_back = true, started_at = now(), agent_version = 1,
        last_activity_at = now() where id = ${id}`)
    const { status, output } = await ended(id)
    assert.deepEqual([status, output.content, await calls(), await attemptOf(id)], ['completed', 'answer', 1, 2])
  })

  it('stay cancelled when they are cancelled before they start', async () => {
    const { agent, calls } = await model('cancelled')
    const { id, output } = await frozenTurn(agent)
    assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
    await eventually(() => output.some(isMessageDone), { what: 'end of the message' })
    const { body } = await app.key.get(`/generations/${id}`)
    assert.deepEqual([body.status, body.stop_reason, body.started_at, await calls()], ['failed', 'cancelled', null, 0])
    assert.deepEqual(await eventsOf(id), ['generations.failed'])
  })

  it('are refused when their principal loses its permission before they start', async () => {
    const { agent, calls } = await model('revoked')
    const action = ['agents:CreateAgentGeneration', 'generations:GetGeneration']
    const resource = [`srn:${app.projectId}:*:*`]
    const caller = await app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource }] }])
    const { id } = await frozenTurn(agent, caller)
    await app.admin.put(`/users/${(await caller.get('/users/me')).body.id}/policies`, { policy_ids: [] })
    const { status, error, started_at } = await ended(id)
    assert.deepEqual([status, error.code, started_at, await calls()], ['failed', 'FORBIDDEN', null, 0])
    assert.deepEqual(await eventsOf(id), ['generations.failed'])
  })

  it('are not executed when they are deleted with their agent before they start', async () => {
    const { agent, calls } = await model('deleted')
    const { id, output } = await frozenTurn(agent)
    assert.equal((await app.key.delete(`/agents/${agent}?force=true`)).status, 204)
    await eventually(() => output.some(isMessageDone), { what: 'end of the message' })
    assert.deepEqual([(await app.key.get(`/generations/${id}`)).status, await calls()], [404, 0])
  })

  it('keep no other turn from its worker when they cannot be read', async () => {
    const { agent } = await model('unreadable')
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await app.pool.query(sql.unsafe`update agents set tool_bindings = '"none"' where id = ${agent}`)
    const other = await app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'x' })
    await steady.start(app.databaseUrl, NO_SWEEP, ['generation'])
    assert.equal((await ended(other.body.generation_id)).status, 'completed')
    await app.key.post(`/generations/${body.generation_id}/cancel`)
    assert.equal((await ended(body.generation_id)).status, 'failed')
  })

  it('are continued when their worker is killed before they start', async () => {
    const { agent, calls } = await model('killed')
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    const id: string = body.generation_id
    await (await worker({ FAULT_POINTS: `message_started=kill@${id}` })).exited
    await steady.start(app.databaseUrl, NO_SWEEP, ['generation'])
    const { status, step_count } = await ended(id)
    assert.deepEqual([status, step_count, await calls(), await attemptOf(id)], ['completed', 1, 1, 1])
    assert.deepEqual(await eventsOf(id), ['generations.completed', 'generations.started'])
  })
})
