import assert from 'node:assert/strict'
import { startDouble } from '#local/double/server.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { type HostedProcess, runWorker } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { openStream, readStream } from './streams.ts'

/** Turns are decided again where they run: in a worker, which serves no requests. */
describe('turns of callers with policies, run by a worker process', () => {
  const double = forSuite(() => startDouble({}))
  const app = forSuite(startApp)
  let worker: HostedProcess
  let project: Awaited<ReturnType<TestApp['project']>>
  let caller: Client
  let agentId: string
  let retriedId: string

  before(async () => {
    worker = await runWorker(app.databaseUrl, {}, ['generation'])
    project = await app.project()
    const provider = await project.key.post('/ai-providers', {
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${double.url}/v1`,
    })
    const agent = async (fields: object) =>
      (await project.key.post('/agents', { ai_provider_id: provider.body.id, ...fields })).body.id as string
    agentId = await agent({ name: 'agent' })
    retriedId = await agent({ name: 'retried', model: 'retried/m' })
    const action = ['agents:CreateAgentGeneration', 'generations:GetGeneration']
    const resource = [`srn:${project.id}:*:*`]
    caller = await app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource }] }])
  })
  after(async () => {
    await worker.stop()
  })

  const status = async (id: string) => (await caller.get(`/generations/${id}`)).body.status

  it('complete when they are waited for', async () => {
    const { status, body } = await caller.post(`/agents/${agentId}/generate?wait=true`, { prompt: 'hello' })
    assert.deepEqual([status, body.status, body.output?.content], [200, 'completed', 'echo: hello'])
  })

  it('complete in the background', async () => {
    const { status: accepted, body } = await caller.post(`/agents/${agentId}/generate`, { prompt: 'later' })
    assert.equal(accepted, 202)
    await eventually(async () => (await status(body.generation_id)) === 'completed')
  })

  it('complete as a stream', async () => {
    const opened = await openStream({ url: app.url, key: caller }, `/agents/${agentId}/generate`, {
      prompt: 'streamed',
      stream: true,
    })
    const messages = await readStream(opened)
    assert.deepEqual(
      messages.filter(({ event }) => /fail|error/.test(event)),
      [],
    )
    assert.ok(JSON.stringify(messages).includes('streamed'))
  })

  it('complete when they are retried', async () => {
    await doubleClient(double).put('retried', {
      rules: [{ replies: [{ error: { status: 400, message: 'no' } }, { text: 'at last' }] }],
    })
    const failed = await caller.post(`/agents/${retriedId}/generate?wait=true`, { prompt: 'ask' })
    assert.equal(failed.body.error.code, 'AI_PROVIDER_ERROR')
    const again = await caller.post(`/generations/${failed.body.error.meta.generation_id}/retry?wait=true`)
    assert.deepEqual([again.status, again.body.output?.content], [200, 'at last'])
  })

  it('end as FORBIDDEN when the right is taken away before they run', async () => {
    process.kill(worker.pid, 'SIGSTOP')
    const { body } = await caller.post(`/agents/${agentId}/generate`, { prompt: 'too late' })
    await app.admin.put(`/users/${(await caller.get('/users/me')).body.id}/policies`, { policy_ids: [] })
    process.kill(worker.pid, 'SIGCONT')
    const id = body.generation_id
    await eventually(async () => (await project.key.get(`/generations/${id}`)).body.status === 'failed')
    assert.equal((await project.key.get(`/generations/${id}`)).body.error.code, 'FORBIDDEN')
  })
})
