import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { settledStatus, upload } from './ingestion-support.ts'

describe('an agent that converts a file', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: ['generation'] }))
  const double = forSuite(() => client(app.double))
  const processes: TestProcess[] = []
  const env = { INGESTION_LEASE_SECONDS: '2', SHUTDOWN_GRACE_MS: '300' }
  const steady = steadyWorkers()
  const worker = async () => {
    const made = await startProcess('worker', app.databaseUrl, env, ['ingestion'])
    processes.push(made)
    return made
  }
  afterEach(() => steady.stop())
  after(async () => {
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
  })

  /** A document whose conversion waits for the model, and the worker that waits for it. */
  const underway = async (lane: string) => {
    await double.put(lane, { rules: [{ reply: { text: 'read once', gate: lane } }] })
    const agent_id = await app.agent({ model: `${lane}/m` })
    await app.key.post('/ingestion-rules', { content_type_glob: `image/${lane}`, agent_id })
    const first = await worker()
    const file_id = await upload(app.key, 'picture', { content_type: `image/${lane}` })
    const { id } = (await app.key.post('/documents/ingest', { file_id })).body
    await eventually(async () => ((await double.gate(lane))?.waiting ?? 0) >= 1, { what: 'the call of the model' })
    return { id, agent_id, first }
  }
  const readOnce = async (id: string, agent_id: string, lane: string) => {
    const document = await settledStatus(app.key, id)
    assert.equal(document.status, 'ready', JSON.stringify(document.error))
    assert.equal((await app.key.get(`/documents/${id}`)).body.content, 'read once')
    assert.equal((await double.requests(lane)).length, 1)
    assert.equal((await app.key.get(`/generations?agent_id=${agent_id}`)).body.total, 1)
  }

  it('is called once, although the worker that waits for it is killed', async () => {
    const { id, agent_id, first } = await underway('killed')
    await first.kill()
    await steady.start(app.databaseUrl, env, ['ingestion'])
    await new Promise(resolve => setTimeout(resolve, 3000))
    await double.read('POST', '/control/gates/killed/open')
    await readOnce(id, agent_id, 'killed')
  })

  it('is called once, although the worker that waits for it is stopped for a new version', async () => {
    const { id, agent_id, first } = await underway('stopped')
    const second = steady.start(app.databaseUrl, env, ['ingestion'])
    await first.kill('SIGTERM')
    await second
    await double.read('POST', '/control/gates/stopped/open')
    await readOnce(id, agent_id, 'stopped')
  })
})
