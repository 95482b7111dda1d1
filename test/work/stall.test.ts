import assert from 'node:assert/strict'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'

describe('a stall of the event loop', () => {
  let app: AgentApp
  before(async () => {
    app = await startAgentApp({ workers: [], actions: ['agents:*', 'generations:*'] })
  })
  after(() => app?.close())

  it('is logged by the worker with its queue, project and stack, and counted', async () => {
    const { body } = await app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'hi' })
    const fault = `message_started=stall:4000@${body.generation_id}`
    const worker = await startProcess('worker', app.databaseUrl, { FAULT_POINTS: fault }, ['generation'])
    try {
      const line = await eventually(() => worker.output.find(each => each.includes('"msg":"event loop stalled"')), {
        what: 'log of the stall',
        within: 30_000,
      })
      const { work, project_id, stack, stall_ms } = JSON.parse(line)
      assert.deepEqual([work, project_id], ['turn.execute', app.projectId])
      assert.ok(stall_ms > 1000, line)
      assert.match(stack.join('\n'), /blockProcess [^\n]*\ninjectFault /)
      const metrics = await (await fetch(`${worker.url}/metrics`)).text()
      assert.match(metrics, /muster_event_loop_stalls_total\{work="turn.execute"\} 1/)
    } finally {
      await worker.kill()
    }
  })
})
