import assert from 'node:assert/strict'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client, eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

describe('a stall of the event loop', () => {
  let app: AgentApp
  before(async () => {
    app = await startAgentApp({ workers: [], actions: ['agents:*', 'generations:*'] })
  })
  after(() => app?.close())

  /** Asserts that a process has logged and counted a stall of a piece of work. */
  async function requireReported({ output, url }: TestProcess, work: string): Promise<void> {
    const line = await eventually(() => output.find(each => each.includes('"msg":"event loop stalled"')), {
      what: 'log of the stall',
      within: 30_000,
    })
    const logged = JSON.parse(line)
    assert.deepEqual([logged.work, logged.project_id], [work, app.projectId])
    assert.ok(logged.stall_ms > 1000, line)
    // Optimised code that ran before the profile may have the innermost function inlined.
    assert.match(logged.stack.join('\n'), /^injectFault /m)
    const metrics = await (await fetch(`${url}/metrics`)).text()
    assert.ok(metrics.includes(`muster_event_loop_stalls_total{work="${work}"} 1`), metrics)
  }

  it('is logged by the worker with its queue, project and stack, and counted', async () => {
    const { body } = await app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'hi' })
    const fault = `message_started=stall:4000@${body.generation_id}`
    const worker = await startProcess('worker', app.databaseUrl, { FAULT_POINTS: fault }, ['generation'])
    try {
      await requireReported(worker, 'turn.execute')
    } finally {
      await worker.kill()
    }
  })

  it('is logged by web with its operation, project and stack, and counted', async () => {
    const web = await startProcess('web', app.databaseUrl, { FAULT_POINTS: 'request_carried_out=stall:4000' })
    try {
      const { status } = await client(web.url, app.key.token).get(`/agents/${app.agentId}`)
      assert.equal(status, 200)
      await requireReported(web, 'getAgent')
    } finally {
      await web.kill()
    }
  })
})
