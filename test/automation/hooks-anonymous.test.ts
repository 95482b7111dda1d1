import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { newId } from '#core/base/ids.ts'
import { eventually } from '../support/app.ts'
import { resident, startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { hook, madeTrigger, signatureOf, startTriggerApp } from './triggers-support.ts'

const MIB = 1024 * 1024

describe('bodies without a bearer credential', function () {
  this.timeout(120_000)
  const app = forSuite(startTriggerApp)
  const key = forSuite(() => app.key)
  let trigger: any
  let other: any
  let web: TestProcess
  const open = new Set<net.Socket>()

  before(async () => {
    const fields = { type: 'webhook', target_type: 'tool', target_id: app.toolId }
    trigger = await madeTrigger(key, fields)
    other = await madeTrigger(key, fields)
    web = await startProcess('web', app.databaseUrl, {
      HTTP_ANONYMOUS_BODIES_BYTES: String(4 * MIB),
      HTTP_ANONYMOUS_BODY_TIMEOUT_MS: '4000',
    })
  })
  afterEach(() => {
    for (const socket of open) socket.destroy()
    open.clear()
  })
  after(async () => {
    await web?.kill()
  })

  type Conversation = { socket: net.Socket; answer: Promise<{ status: number; text: string }> }

  /** Sends the head of a request and the start of its body; the answer is complete when the server closes. */
  async function begin(path: string, body: Buffer, headers: Record<string, string> = {}): Promise<Conversation> {
    const socket = net.connect(Number(new URL(web.url).port), '127.0.0.1')
    open.add(socket)
    let text = ''
    socket.on('data', chunk => {
      text += chunk
    })
    socket.on('error', () => {})
    const answer = once(socket, 'close').then(() => ({ status: Number(text.slice(9, 12)), text }))
    const lines = Object.entries({ Host: 'x', 'Content-Length': String(MIB), ...headers })
    await once(socket, 'connect')
    socket.write(`POST ${path} HTTP/1.1\r\n${lines.map(line => line.join(': ')).join('\r\n')}\r\n\r\n`)
    socket.write(body)
    return { socket, answer }
  }

  const hookPath = (id: string) => `/api/v1/hooks/triggers/${id}`
  /** What a call needs to have its body read. */
  const signed = () => ({ 'X-Svc-Signature': signatureOf('any', '') })
  const firing = (trigger: any, body = '{}') => hook(web.url, trigger, body)

  it('are not read where the hook does not exist, or the call is not signed', async () => {
    const most = (await resident(web.pid)).most
    const part = Buffer.alloc(960 * 1024, 'x')
    const conversations = await Promise.all(
      Array.from({ length: 100 }, (_, at) =>
        at % 2 === 0
          ? begin(hookPath(newId('trg')), part, signed())
          : begin(hookPath(trigger.id), part, { 'X-Svc-Signature': at % 4 === 1 ? 'x' : `t=1,v1=${'0'.repeat(64)}` }),
      ),
    )
    // The client never ends its body: only a refusal before that can be the answer.
    const answers = await Promise.all(conversations.map(({ answer }) => answer))
    assert.deepEqual(
      answers.map(({ status }) => status),
      answers.map((_, at) => (at % 2 === 0 ? 404 : 401)),
    )
    assert.ok((await resident(web.pid)).most - most < 60 * MIB)
  })

  it('have a time limit, which bodies with a credential do not share', async () => {
    const part = Buffer.from('{"name":')
    const bearer = { Authorization: `Bearer ${key.token}`, 'Content-Length': '12', Connection: 'close' }
    const known = await begin('/api/v1/actors', part, bearer)
    const slow = await Promise.all([
      begin(hookPath(trigger.id), part, signed()),
      begin('/api/v1/users/login', part, { 'Content-Length': '1000' }),
      begin('/api/v1/actors', part, { 'Content-Length': '1000' }),
    ])
    for (const { answer } of slow) assert.equal((await answer).status, 408)
    known.socket.write('"a"}')
    assert.equal((await known.answer).status, 201)
    // The next test reads lines.
    await eventually(() => web.output.some(line => line.includes('/api/v1/actors') && line.includes('"status":201')), {
      what: 'the line of the request',
    })
  })

  // Before the test that leaves no memory for bodies, which is released only when its connections have ended.
  it('that break off are no fault, and leave no line in the log', async () => {
    const before = web.output.length
    const part = Buffer.from('{"name":')
    const paths = [hookPath(trigger.id), '/api/v1/users/login', '/api/v1/actors', '/api/v1/users/bootstrap']
    const requests = async () =>
      (await (await fetch(`${web.url}/metrics`)).text())
        .split('\n')
        .filter(line => line.startsWith('muster_requests_total') && line.includes('"400"'))
        .reduce((sum, line) => sum + Number(line.split(' ')[1]), 0)
    const refused = await requests()
    let begun = 0
    for (const path of paths)
      for (let round = 0; round < 5; round++) {
        const { socket } = await begin(path, part, { ...signed(), 'Content-Length': '1000' })
        begun++
        // A reset, and an end in the middle.
        if (round % 2 === 0) socket.resetAndDestroy()
        else socket.end()
        // More concurrent requests than the trigger may hold would be refused.
        await eventually(async () => (await requests()) >= refused + begun, { what: 'the end of the request' })
      }
    assert.equal((await firing(other, '{"last":1}')).status, 202)
    await eventually(() => web.output.slice(before).some(line => line.includes(other.id)), { what: 'a line' })
    // A busy machine may stall the process.
    const others = [other.id, '/metrics', 'event loop']
    const lines = web.output.slice(before).filter(line => !others.some(text => line.includes(text)))
    assert.deepEqual(lines, [])
  })

  it('take no more memory together than there is for them, and one hook no more than a quarter', async () => {
    const part = Buffer.alloc(900 * 1024, 'x')
    let held = await begin(hookPath(trigger.id), part, signed())
    const refused = await eventually(async () => {
      const reply = await firing(trigger, JSON.stringify('x'.repeat(200 * 1024)))
      if (reply.status === 503) return reply
      // It may have taken longer than the service holds requests.
      if (held.socket.destroyed) held = await begin(hookPath(trigger.id), part, signed())
      return null
    })
    assert.equal(refused.body.error.code, 'SERVICE_NOT_READY')
    assert.equal((await firing(other)).status, 202)
    held.socket.destroy()
    const body = JSON.stringify('x'.repeat(300 * 1024))
    await eventually(async () => (await firing(trigger, body)).status === 202, { what: 'memory that was released' })
    const more = await Promise.all(
      Array.from({ length: 6 }, async () => {
        const { id } = await madeTrigger(key, { type: 'webhook', target_type: 'tool', target_id: app.toolId })
        return begin(hookPath(id), part, signed())
      }),
    )
    const first = await Promise.race(more.map(({ answer }) => answer))
    assert.equal(first.status, 503)
    assert.match(first.text, /\r\nRetry-After: 1\r\n/i)
  })
})
