import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'

/** A vendor that accepts connections and reads requests, but answers only once it is told to. */
class SilentVendor {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  #answers = false
  /** Requests received. */
  asked = 0

  constructor() {
    this.#server = createServer(socket => {
      this.#sockets.add(socket)
      socket.on('close', () => this.#sockets.delete(socket))
      socket.on('error', () => {})
      socket.on('data', data => {
        if (!data.toString('latin1').includes('POST ')) return
        this.asked++
        if (this.#answers) this.#reply(socket)
      })
    })
  }

  /** Number of open requests. */
  get open(): number {
    return this.#sockets.size
  }

  async listen(): Promise<string> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`
  }

  answerAll(): void {
    this.#answers = true
    for (const socket of this.#sockets) this.#reply(socket)
  }

  #reply(socket: Socket): void {
    const body = JSON.stringify({
      id: 'c',
      object: 'chat.completion',
      created: 1,
      model: 'm',
      choices: [{ index: 0, message: { role: 'assistant', content: 'late' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
    })
    socket.end(
      `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    )
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy()
    this.#server.close()
  }
}

describe('a vendor that does not answer', function () {
  this.timeout(180_000)
  let app: AgentApp
  let vendor: SilentVendor
  let silent: string
  const workers = steadyWorkers()

  before(async () => {
    app = await startAgentApp({ workers: [] })
    vendor = new SilentVendor()
    const provider = await app.admin.post('/ai-providers', {
      project_id: app.projectId,
      name: 'silent',
      provider: 'custom',
      default_model: 'm',
      base_url: `${await vendor.listen()}/v1`,
    })
    assert.equal(provider.status, 201, JSON.stringify(provider.body))
    silent = await app.agent({ ai_provider_id: provider.body.id, model: 'm' })
    await workers.start(app.databaseUrl, { WORKER_CONCURRENCY: '10' }, ['generation'])
  })
  after(async () => {
    vendor?.close()
    await workers.stop()
    await app?.close()
  })

  const start = async (agent: string) =>
    (await app.key.post(`/agents/${agent}/generate`, { prompt: 'hello' })).body.generation_id as string
  const status = async (id: string) => (await app.key.get(`/generations/${id}`)).body.status as string

  it('holds at most half of the slots of its project, and gets its work again when it answers', async () => {
    const hung = await Promise.all(Array.from({ length: 30 }, () => start(silent)))
    await eventually(() => vendor.asked >= 9, { what: 'hung calls' })
    // More of them keep coming while others have work for a vendor that answers.
    const healthy = []
    for (let n = 0; n < 20; n++) {
      const began = Date.now()
      const id = await start(app.agentId)
      await eventually(async () => (await status(id)) === 'completed', { every: 50, what: `healthy turn ${n}` })
      healthy.push(Date.now() - began)
    }
    // Without room for others, the first of them would end after 330 s.
    assert.ok(Math.max(...healthy) < 15_000, `${healthy}`)
    // The calls that were under way before it was known to hang, and no more.
    assert.ok(vendor.asked <= 10, `${vendor.asked} calls`)
    const states = await Promise.all(hung.map(status))
    assert.ok(
      states.every(state => state === 'in_progress' || state === 'pending'),
      `${states}`,
    )

    vendor.answerAll()
    await eventually(async () => (await Promise.all(hung.map(status))).every(state => state === 'completed'), {
      what: 'recovery',
    })
  })

  it('has a bounded number of turns in memory that wait for it', async () => {
    const other = new SilentVendor()
    try {
      const provider = await app.admin.post('/ai-providers', {
        project_id: app.projectId,
        name: 'silent too',
        provider: 'custom',
        default_model: 'm',
        base_url: `${await other.listen()}/v1`,
      })
      const agent = await app.agent({ ai_provider_id: provider.body.id, model: 'm' })
      const hung: string[] = []
      for (let count = 0; count < 16; count++)
        hung.push(...(await Promise.all(Array.from({ length: 10 }, () => start(agent)))))
      const running = async () => (await Promise.all(hung.map(status))).filter(state => state === 'in_progress').length
      await eventually(async () => (await running()) >= 100, { what: 'waiting turns' })
      await sleep(3000)
      const count = await running()
      assert.ok(count < 130, `${count} turns in memory`)
      other.answerAll()
      await eventually(async () => (await Promise.all(hung.map(status))).every(state => state === 'completed'), {
        what: 'recovery',
      })
    } finally {
      other.close()
    }
  })
})
