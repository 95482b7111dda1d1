import assert from 'node:assert/strict'
import { acquireReadMemory } from '#content/files/read-memory.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { HEAP_FLAGS, resident, startProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'

const MIB = 1024 * 1024

describe('the memory of a worker whose turns have files', function () {
  this.timeout(180_000)
  let app: AgentApp

  before(async function () {
    if (process.platform !== 'linux') this.skip()
    app = await startAgentApp({ workers: [] })
  })
  after(() => app?.close())

  it('grows by what the setting allows, however many there are, and every turn gets its files', async () => {
    const [memory, size, count] = [72 * MIB, 6 * MIB, 16]
    const worker = await startProcess(
      'worker',
      app.databaseUrl,
      { FILES_MEMORY_BYTES: String(memory), WORKER_CONCURRENCY: '20', EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      ['generation'],
      HEAP_FLAGS,
    )
    try {
      await client(app.double).put('large', { rules: [{ reply: { text: 'seen', delay_ms: 200 } }] })
      const agent = await app.agent({ model: 'large/m' })
      const generate = async (content: unknown) =>
        (await createdBy(app.key, `/agents/${agent}/generate`, { messages: [{ role: 'user', content }] }, 202))
          .generation_id as string
      const ended = (id: string) =>
        eventually(
          async () => {
            const { body } = await app.key.get(`/generations/${id}`)
            return body.status === 'pending' || body.status === 'in_progress' ? null : body
          },
          { within: 120_000, every: 100 },
        )
      const upload = async (bytes: Buffer) => {
        const file = { filename: `${bytes.length}.png`, content_type: 'image/png', content: bytes.toString('base64') }
        return (await app.key.post('/files/upload/base64', file)).body.id as string
      }
      // Data that a turn needs in addition to its files is loaded before anything is measured.
      assert.equal(
        (await ended(await generate([{ type: 'file', file_id: await upload(Buffer.alloc(10)) }]))).status,
        'completed',
      )
      const large = await upload(Buffer.alloc(size, 7))
      const before = await resident(worker.pid)
      const turns = await Promise.all(Array.from({ length: count }, () => generate([{ type: 'file', file_id: large }])))
      for (const id of turns) {
        const turn = await ended(id)
        assert.equal(turn.status, 'completed', JSON.stringify(turn.error))
      }
      const grown = (await resident(worker.pid)).most - before.now
      // Garbage counts; all sixteen together would take twice as much.
      assert.ok(grown < memory + 256 * MIB, `${Math.round(grown / MIB)} MiB`)
    } finally {
      await worker.kill()
    }
  })
})

describe('files that are read whole, where there is little memory', function () {
  this.timeout(120_000)
  const app = forSuite(() => startAgentApp({ env: { FILES_MEMORY_BYTES: String(MIB) } }))

  it('are refused for a turn when there is never enough for them', async () => {
    const content = Buffer.alloc(100_000, 7).toString('base64')
    const made = await app.key.post('/files/upload/base64', { filename: 'a.png', content_type: 'image/png', content })
    const generate = (files: number) => {
      const parts = Array.from({ length: files }, () => ({ type: 'file', file_id: made.body.id }))
      return app.key.post(`/agents/${app.agentId}/generate?wait=true`, { messages: [{ role: 'user', content: parts }] })
    }
    assert.equal((await generate(1)).status, 200)
    const { status, body } = await generate(2)
    assert.deepEqual([status, body.error.code], [400, 'VALIDATION_FAILED'])
    assert.deepEqual(body.error.meta.problems, [
      {
        code: 'TOO_BIG',
        path: 'messages',
        message: `must refer to files of at most ${Math.floor(MIB / 6)} bytes in total`,
      },
    ])
  })

  it('are not waited for longer than half a minute by a request', async () => {
    const made = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hi' })
    assert.equal(made.status, 200, JSON.stringify(made.body))
    const { id, trace_id } = made.body
    await eventually(async () => (await app.key.get(`/traces/${trace_id}`)).body.file_id)
    const release = await acquireReadMemory(app.services, app.projectId, MIB)
    const asked = performance.now()
    const { status, body, headers } = await app.key.get(`/generations/${id}/transcript`)
    const waited = performance.now() - asked
    assert.ok(waited < 50_000, `${waited} ms`)
    assert.deepEqual(
      [status, body.error.code, body.error.meta],
      [503, 'SERVICE_NOT_READY', { checks: { files: 'busy' } }],
    )
    assert.equal(headers.get('retry-after'), '5')
    const waiting = app.key.get(`/generations/${id}/transcript`)
    release()
    assert.equal((await waiting).status, 200)
  })
})
