import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { tools, wire, withTasks } from './support.ts'

/** Processes that are lost while a client follows a task. */
describe('a task of /mcp whose processes are killed', () => {
  const app = forSuite(() => startAgentApp({ workers: [] }))

  it('is the same task in others, and ends with the record of the tool', async () => {
    const double = client(app.double)
    await double.put('killed', {
      rules: [{ when: { call: 1 }, reply: { text: 'lost', gate: 'killed' } }, { reply: { text: 'found' } }],
    })
    const agent_id = await app.agent({ model: 'killed/m' })
    const fast = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', MCP_TASK_AFTER_MS: '200' }
    const start = () =>
      Promise.all([
        startProcess('web', app.databaseUrl, fast),
        startProcess('worker', app.databaseUrl, fast, ['generation']),
      ])
    const kill = (processes: Awaited<ReturnType<typeof start>>) =>
      Promise.all(processes.map(process => process.kill('SIGKILL')))
    const get = (url: string, taskId: string) =>
      wire(url, app.key.token)('tasks/get', { taskId }, { capabilities: withTasks })

    const first = await start()
    const { taskId, resultType } = await tools(first[0].url, app.key.token)(
      'create-agent-generation',
      { agent_id, prompt: 'hello' },
      { capabilities: withTasks },
    )
    assert.equal(resultType, 'task')
    await eventually(async () => (await double.gate('killed'))?.waiting === 1)
    assert.equal((await get(first[0].url, taskId)).body.result.status, 'working')
    await kill(first)
    const second = await start()
    try {
      const { result } = await eventually(async () => {
        const { body } = await get(second[0].url, taskId)
        return body.result?.status === 'completed' && body.result
      })
      const { structuredContent } = result
      assert.equal(structuredContent.output.content, 'found')
      const waited = await tools(second[0].url, app.key.token)('create-agent-generation', { agent_id, prompt: 'hello' })
      const timeless = ({ id, trace_id, output, usage, status }: any) => ({
        id: typeof id,
        trace_id: typeof trace_id,
        output,
        usage,
        status,
      })
      assert.deepEqual(Object.keys(structuredContent), Object.keys(waited.structuredContent))
      assert.deepEqual(timeless(structuredContent), timeless(waited.structuredContent))
    } finally {
      await kill(second)
    }
  })
})
