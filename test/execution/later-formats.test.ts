import assert from 'node:assert/strict'
import { chain, startRunApp } from '../automation/fixtures.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { toolCall } from '../support/scripts.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { openStream, readStream } from './streams.ts'
import { startTarget, type Target } from './tool-target.ts'

const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}
const KINDS = ['generation', 'orchestration']
const LEFT = 'message left to a worker of a later release'

describe('working state in a format of a later release', function () {
  this.timeout(90_000)
  let target: Target
  const processes: TestProcess[] = []
  const steady = steadyWorkers()

  /** Starts a process that writes and reads the next version of a format. */
  const later = async (app: AgentApp, kind: 'web' | 'worker', format: string, faults = '') => {
    const FAULT_POINTS = `${format}=version:2${faults && `,${faults}`}`
    const made = await startProcess(kind, app.databaseUrl, { ...FAST, FAULT_POINTS }, kind === 'worker' ? KINDS : [])
    processes.push(made)
    return made
  }
  /** Sends a request to another web process than the test's. */
  const postTo = async ({ url }: TestProcess, app: AgentApp, path: string, body: object) => {
    const headers = { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' }
    const response = await fetch(`${url}/api/v1${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    return { status: response.status, body: (await response.json()) as any }
  }
  const ended = (app: AgentApp, id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return ['completed', 'failed'].includes(body.status) ? body : null
      },
      { what: `end of ${id}`, within: 60_000 },
    )
  const stateOf = async (app: AgentApp, id: string) =>
    (await app.rows('select status, attempt, lost_attempts from generations where id = $1', [id]))[0]
  const linesOf = ({ output }: { output: string[] }) => output.filter(line => line.includes(LEFT))

  before(async () => {
    target = await startTarget()
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(
      processes
        .splice(0)
        .map(async each => (each.child.exitCode === null && each.child.signalCode === null ? each.kill() : null)),
    )
  })
  after(() => target?.close())

  describe('of turns', () => {
    let app: AgentApp
    before(async () => {
      const actions = ['agents:*', 'generations:*', 'sessions:*', 'conversations:*', 'actors:*', 'traces:*']
      app = await startAgentApp({ workers: [], env: FAST, actions })
    })
    after(() => app?.close())

    it('waits for a worker that reads it; other turns and requests do not', async () => {
      const web = await later(app, 'web', 'turn_data')
      const old = await steady.start(app.databaseUrl, FAST, KINDS)
      const made = await postTo(web, app, `/agents/${app.agentId}/generate?wait=false`, { prompt: 'later' })
      assert.equal(made.status, 202)
      const id = made.body.generation_id
      await eventually(() => linesOf(old).length === 1, { what: 'the message left' })
      const { body } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'other' })
      assert.equal(body.output.content, 'echo: other')
      // A change of the turn needs its state.
      const cancel = await app.key.post(`/generations/${id}/cancel`)
      assert.deepEqual([cancel.status, cancel.body.error.code], [503, 'SERVICE_NOT_READY'])
      assert.equal(cancel.headers.get('retry-after'), '1')
      assert.deepEqual(await stateOf(app, id), { status: 'pending', attempt: 0, lost_attempts: 0 })
      await later(app, 'worker', 'turn_data')
      assert.equal((await ended(app, id)).output.content, 'echo: later')
      assert.deepEqual(await stateOf(app, id), { status: 'completed', attempt: 1, lost_attempts: 0 })
      assert.equal(linesOf(old).length, 1)
    })

    it('holds up a session only', async () => {
      const web = await later(app, 'web', 'turn_data')
      const old = await steady.start(app.databaseUrl, FAST, KINDS)
      const session = (await app.key.post('/sessions', { agent_id: app.agentId, auto_generate: true })).body.id
      const sent = await postTo(web, app, `/sessions/${session}/messages`, { message: 'later' })
      assert.ok([200, 201, 202].includes(sent.status), JSON.stringify(sent.body))
      await eventually(() => linesOf(old).length === 1, { what: 'the message left' })
      await steady.stop()
      await later(app, 'worker', 'turn_data')
      await eventually(
        async () => {
          const { body } = await app.key.get(`/sessions/${session}/messages`)
          return body.data.some(({ content }: any) => JSON.stringify(content).includes('echo: later'))
        },
        { what: 'the reply' },
      )
    })

    it('waits in the middle of a step, without counting a lost worker more than once', async () => {
      const tool = { name: 'act', execute: { url: `${target.url}/act` }, idempotent: true }
      const agent = await app.agent({ tool_bindings: [{ tool }] })
      const first = await later(app, 'worker', 'turn_journal', 'before_tool=kill')
      const prompt = `@double ${JSON.stringify([toolCall('act'), { text: 'done' }])}`
      const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt })
      await first.exited
      const old = await steady.start(app.databaseUrl, FAST, KINDS)
      await eventually(() => linesOf(old).length === 1, { what: 'the message left' })
      assert.deepEqual(await stateOf(app, body.generation_id), { status: 'in_progress', attempt: 1, lost_attempts: 0 })
      assert.equal(target.requests.length, 0)
      await steady.stop()
      await later(app, 'worker', 'turn_journal')
      assert.equal((await ended(app, body.generation_id)).output.content, 'done')
      assert.equal((await stateOf(app, body.generation_id)).attempt, 2)
      assert.equal(target.requests.length, 1)
    })

    it('events that only a later release has are not sent to readers of a stream', async () => {
      await steady.start(app.databaseUrl, FAST, KINDS)
      const eventsOf = async (path: string, body?: object) =>
        (await readStream(await openStream(app, path, body))).map(({ event }) => event)
      const sent = await eventsOf(`/agents/${app.agentId}/generate`, { prompt: 'x', stream: true })
      const [{ id }] = await app.rows('select id from generations order by created_at desc limit 1')
      await app.rows(`update stream_frames set seq = seq + 1 where generation_id = $1 and event = 'completed'`, [id])
      await app.rows(
        `insert into stream_frames (generation_id, seq, event, data)
         select generation_id, max(seq) - 1, 'thought', '{}' from stream_frames where generation_id = $1 group by 1`,
        [id],
      )
      assert.deepEqual(await eventsOf(`/generations/${id}/stream`), sent)
    })
  })

  it('of runs waits for a worker that reads it; other runs do not', async () => {
    const app = await startRunApp({ workers: [], env: FAST })
    try {
      const tool_id = await app.tool()
      const node = (id: string) => ({ id, type: 'tool', tool_id })
      const orchestration = await app.orchestration([node('a'), node('b')], chain('a', 'b'))
      const web = await later(app, 'web', 'run_context')
      const old = await steady.start(app.databaseUrl, FAST, KINDS)
      const body = { orchestration_id: orchestration, tool_context: { tenant: 'x' } }
      const { id } = (await postTo(web, app, '/orchestration-runs', body)).body
      await eventually(() => linesOf(old).length === 1, { what: 'the message left' })
      const other = await app.start(orchestration, { tool_context: { tenant: 'y' } })
      assert.equal(other.status, 'succeeded')
      assert.equal((await app.key.post(`/orchestration-runs/${id}/pause`, {})).status, 503)
      assert.deepEqual((await app.read(id)).node_executions, [])
      await steady.stop()
      await later(app, 'worker', 'run_context')
      assert.equal((await app.until(id)).status, 'succeeded')
      assert.deepEqual(await app.rows('select deliveries from orchestration_node_executions where run_id = $1', [id]), [
        { deliveries: 1 },
        { deliveries: 1 },
      ])
    } finally {
      await app.close()
    }
  })

  it('of a node whose worker was lost does not count deliveries', async () => {
    const app = await startRunApp({ workers: [], env: FAST })
    try {
      const tool_id = await app.tool()
      const orchestration = await app.orchestration([{ id: 'a', type: 'tool', tool_id }])
      const web = await later(app, 'web', 'run_context')
      const first = await later(app, 'worker', 'run_context', 'node_taken=kill')
      const body = { orchestration_id: orchestration, tool_context: { tenant: 'x' } }
      const { id } = (await postTo(web, app, '/orchestration-runs', body)).body
      await first.exited
      const old = await steady.start(app.databaseUrl, FAST, KINDS)
      const deliveries = async () =>
        (await app.rows('select deliveries from orchestration_node_executions where run_id = $1', [id]))[0].deliveries
      await eventually(() => linesOf(old).some(line => line.includes('node.execute')), { what: 'the message left' })
      assert.equal(await deliveries(), 1)
      await steady.stop()
      await later(app, 'worker', 'run_context')
      assert.equal((await app.until(id)).status, 'succeeded')
      assert.equal(await deliveries(), 2)
    } finally {
      await app.close()
    }
  })
})
