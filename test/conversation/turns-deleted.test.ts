import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster, steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', CONVERSATION_SWEEP_SECONDS: '1' }

const ACTIONS = ['conversations:*', 'sessions:*', 'generations:*', 'agents:*', 'tools:CreateTool']

describe('turns of a conversation that is deleted', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, workers: [], env: FAST }))
  const double = forSuite(() => client(app.double))
  let running: TestProcess[] = []
  afterEach(async () => {
    await steady.stop()
    for (const each of running) await each.kill()
    running = []
  })

  const worker = async () => {
    const made = await startProcess('worker', app.databaseUrl, FAST, ['generation'])
    running.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['generation'])
  const ok = async (reply: Promise<any>, status = 200) => {
    const { status: got, body } = await reply
    assert.equal(got, status, JSON.stringify(body))
    return body
  }
  const turn = (id: string) => ok(app.key.get(`/generations/${id}`))
  const forget = () => app.pool.query(rawQuery(`delete from pgboss.job_common where name = 'conversation.process'`))
  const conversation = async () => {
    const { id } = await ok(app.key.post('/conversations', {}), 201)
    return id as string
  }
  const ask = async (id: string, agent_id: string): Promise<string> => {
    await ok(app.key.post(`/conversations/${id}/messages`, { role: 'user', message: 'hello' }), 201)
    return (await ok(app.key.post(`/conversations/${id}/generate?wait=false`, { agent_id }), 202)).generation_id
  }
  let gates = 0
  /** A turn whose worker died while the model had not answered. */
  async function lost(asked: (agentId: string) => Promise<string> = async id => ask(await conversation(), id)) {
    const gate = `gate${++gates}`
    await double.put(gate, { rules: [{ reply: { text: 'late', gate } }] } as never)
    const made = await worker()
    const id = await asked(await app.agent({ model: `${gate}/m` }))
    await eventually(async () => ((await double.gate(gate))?.waiting ?? 0) > 0, { what: 'the model is called' })
    await made.kill()
    const { status, conversation_id, session_id } = await turn(id)
    assert.equal(status, 'in_progress')
    return { id, conversation_id: conversation_id as string, session_id: session_id as string }
  }
  const ended = (id: string) =>
    eventually(async () => {
      const found = await turn(id)
      return found.status === 'failed' ? found : null
    })
  const expectGone = async (id: string) => assert.equal((await ended(id)).error.code, 'RESOURCE_NOT_FOUND')

  it('of agents without stored content are deleted and cancelled before they start', async () => {
    const agent = await app.agent({ trace_content_mode: 'none' })
    const id = await conversation()
    const deleted = await ask(id, agent)
    await ok(app.key.delete(`/conversations/${id}`), 204)
    await expectGone(deleted)
    const cancelled = await ask(await conversation(), agent)
    await ok(app.key.post(`/generations/${cancelled}/cancel`, {}))
    assert.equal((await turn(cancelled)).stop_reason, 'cancelled')
  })

  it('are ended by the worker that takes the mailbox over', async () => {
    const { id, conversation_id } = await lost()
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    assert.equal((await turn(id)).status, 'in_progress')
    await steadyWorker()
    await expectGone(id)
  })

  it('are ended by the sweep where no message is left', async () => {
    const { id, conversation_id } = await lost()
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    await forget()
    await steadyWorker()
    await expectGone(id)
  })

  it('of a session are ended too, and release their quota reservations', async () => {
    const { id, session_id } = await lost(async agent_id => {
      const session = await ok(app.key.post('/sessions', { agent_id }), 201)
      await ok(app.key.post(`/sessions/${session.id}/messages`, { message: 'hello' }), 201)
      return (await ok(app.key.post(`/sessions/${session.id}/generate?wait=false`), 202)).generation_id
    })
    await ok(app.key.delete(`/sessions/${session_id}`), 204)
    const { agent_id } = await turn(id)
    const quota = {
      scope: 'agent',
      scope_ref: agent_id,
      metric: 'tokens',
      limit: 1_000_000,
      window: 'rolling_24h',
      reserve: true,
    }
    await ok(app.admin.post('/quotas', { project_id: app.projectId, ...quota }), 201)
    // Of the first turns of an agent the usage is unpredictable, so that they follow each other.
    const next = () => app.key.post(`/agents/${agent_id}/generate?wait=false`, { prompt: 'hello' })
    assert.equal((await next()).status, 429)
    await forget()
    await steadyWorker()
    await expectGone(id)
    assert.equal((await next()).status, 202)
  })

  it('are ended immediately by a cancel, and their content can be erased', async () => {
    const { id, conversation_id } = await lost()
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    assert.equal((await ok(app.key.post(`/generations/${id}/cancel`))).status, 'failed')
    assert.notEqual((await ok(app.key.delete(`/generations/${id}/content`))).content_redacted_at, null)
  })

  it('are woken by `reprocess generations`', async () => {
    const { id, conversation_id } = await lost()
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    await forget()
    const { stdout } = await muster(['reprocess', 'generations'], testEnvironment(app.databaseUrlOf(app.projectId)))
    assert.match(stdout, /1 turns woken/)
    await steadyWorker({ CONVERSATION_SWEEP_SECONDS: '3600' })
    await expectGone(id)
  })

  it('are ended while they wait for their clients', async () => {
    const tool = await ok(app.key.post('/tools', { name: 'pick', type: 'client' }), 201)
    await double.put('pick', { rules: [{ reply: { tool_calls: [{ name: 'pick', args: {} }] } }] } as never)
    const agent_id = await app.agent({ model: 'pick/m', tool_bindings: [{ tool_id: tool.id }] })
    await steadyWorker()
    const conversation_id = await conversation()
    const id = await ask(conversation_id, agent_id)
    await eventually(async () => (await turn(id)).status === 'requires_action')
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    await expectGone(id)
  })

  it('are left to workers beyond the first hundred that wait', async () => {
    const conversation_id = await conversation()
    const ids: string[] = []
    for (let count = 0; count < 150; count++) ids.push(await ask(conversation_id, app.agentId))
    await ok(app.key.delete(`/conversations/${conversation_id}`), 204)
    const statuses = async () => {
      const found = Map.groupBy(await Promise.all(ids.map(turn)), ({ status }) => status)
      return Object.fromEntries([...found].map(([status, turns]) => [status, turns.length]))
    }
    assert.deepEqual(await statuses(), { failed: 100, pending: 50 })
    await steadyWorker()
    await eventually(async () => (await statuses()).failed === 150)
    for (const id of ids) await expectGone(id)
  })
})
