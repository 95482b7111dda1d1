import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from '#core/db/sql.ts'
import { beginHostCall, type HostCall, withSlotHolder } from '#core/net/hanging-calls.ts'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

/** A vendor that accepts connections and reads requests, but answers only on a signal. */
class SilentVendor {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  #answers = false
  /** Requests received. */
  asked = 0
  /** Sent for each request, before the rest. */
  head: string | null = null

  constructor() {
    this.#server = createServer(socket => {
      this.#sockets.add(socket)
      socket.on('close', () => this.#sockets.delete(socket))
      socket.on('error', () => {})
      socket.on('data', data => {
        if (!data.toString('latin1').includes('POST ')) return
        this.asked++
        if (this.head) socket.write(this.head)
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

  /** Ends all responses. */
  end(text: string): void {
    for (const socket of this.#sockets) socket.end(text)
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
  const app = forSuite(() => startAgentApp({ workers: [] }))
  let vendor: SilentVendor
  let silent: string
  const workers = steadyWorkers()

  before(async () => {
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
  })

  const start = async (agent: string) =>
    (await app.key.post(`/agents/${agent}/generate`, { prompt: 'hello' })).body.generation_id as string
  const status = async (id: string) => (await app.key.get(`/generations/${id}`)).body.status as string

  it('holds at most half of the slots of its project, and gets its work again when it answers', async () => {
    const hung = await Promise.all(Array.from({ length: 30 }, () => start(silent)))
    await eventually(() => vendor.asked >= 5, { what: 'hung calls' })
    // More of them keep coming while others have work for a vendor that answers.
    const healthy = []
    for (let n = 0; n < 20; n++) {
      const began = Date.now()
      const id = await start(app.agentId)
      await eventually(async () => (await status(id)) === 'completed', { every: 50, what: `healthy turn ${n}` })
      healthy.push(Date.now() - began)
    }
    // Without capacity for others, the first of them would end after 330 s.
    assert.ok(Math.max(...healthy) < 15_000, `${healthy}`)
    // The calls that were active before its hanging was detected, and no more.
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

  it('gets more turns than may wait in memory, and those for other hosts start', async () => {
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
      const requeued = sql.unsafe`select count(*)::int from generations where handed_back and id = any(${sql.array(hung, 'text')})`
      await eventually(async () => ((await app.pool.oneFirst(requeued)) as number) >= 100, {
        what: 'requeued turns',
      })
      assert.ok(other.asked <= 10, `${other.asked} calls`)
      // Without it, all slots would be held for 330 s.
      const began = Date.now()
      const id = await start(app.agentId)
      await eventually(async () => (await status(id)) === 'completed', { every: 50, what: 'healthy turn' })
      assert.ok(Date.now() - began < 30_000, `${Date.now() - began} ms`)
      other.answerAll()
      await eventually(async () => (await Promise.all(hung.map(status))).every(state => state === 'completed'), {
        what: 'recovery',
      })
      // A wait counts as no lost attempt.
      const losses = sql.unsafe`select max(lost_attempts) from generations where id = any(${sql.array(hung, 'text')})`
      assert.equal(await app.pool.oneFirst(losses), 0)
    } finally {
      other.close()
    }
  })
})

describe('calls of work with a slot', () => {
  /** A holder with one slot for a host; counts the slots that calls have released. */
  const holderOf = (project: string, most = 1) => {
    const held = {
      project,
      most,
      released: 0,
      release() {
        held.released++
        return () => held.released--
      },
    }
    return held
  }
  const servers: SilentVendor[] = []
  const silent = async () => {
    const server = new SilentVendor()
    servers.push(server)
    return { server, url: await server.listen() }
  }
  after(() => {
    for (const server of servers) server.close()
  })

  it('release slots by fetch of a bounded body too', async () => {
    const { server, url } = await silent()
    const holder = holderOf('fetch')
    const call = () => fetchWithLimit(1000)(url, { method: 'POST' }).then(response => response.text())
    const calls = withSlotHolder(holder, () => Promise.all([call(), call()]))
    await eventually(() => holder.released === 1, { what: 'a released slot' })
    // A third one waits.
    const third = withSlotHolder(holder, call)
    await eventually(() => holder.released === 2, { what: 'a call that waits' })
    assert.equal(server.asked, 2)
    server.answerAll()
    for (const text of [...(await calls), await third]) assert.match(text, /late/)
    assert.equal(holder.released, 0)
  })

  it('release slots while a body of a declared length does not arrive', async () => {
    const { server, url } = await silent()
    server.head = 'HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n'
    const holder = holderOf('bodies')
    const call = () => fetchWithLimit(1000)(url, { method: 'POST' }).then(response => response.text())
    const calls = withSlotHolder(holder, () => Promise.all([call(), call()]))
    await eventually(() => holder.released === 1, { what: 'a released slot' })
    server.end('done')
    assert.deepEqual(await calls, ['done', 'done'])
    assert.equal(holder.released, 0)
  })

  it('start no more calls than have ended in the same turn of the event loop', async () => {
    const holder = holderOf('starts', 2)
    const begin = () => withSlotHolder(holder, () => beginHostCall('a.example'))
    const first = (await Promise.all([begin(), begin()])) as HostCall[]
    // Both hang by then.
    await sleep(2000)
    const started: HostCall[] = []
    for (let count = 0; count < 5; count++) void begin().then(call => started.push(call as HostCall))
    await sleep(20)
    assert.equal(started.length, 0)
    for (const call of first) call.end()
    await sleep(20)
    assert.equal(started.length, 2)
    for (let index = 0; index < 5; index++) {
      started[index].end()
      await sleep(5)
    }
    assert.deepEqual([started.length, holder.released], [5, 0])
  })
})
