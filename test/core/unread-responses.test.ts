import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually, startApp } from '../support/app.ts'
import { resident, startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const IDLE = 3000
const MIB = 1024 * 1024
/** More than the kernel buffers for a connection whose client reads nothing. */
const BEYOND_KERNEL = 16 * MIB
const FILE_BYTES = 24 * MIB

describe('a response that the client does not read', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let web: TestProcess
  let file: string
  let document: string
  let consoleFile: string
  before(async () => {
    web = await startProcess('web', app.databaseUrl, { HTTP_IDLE_TIMEOUT_MS: String(IDLE) })
    const made = await project.key.post('/files', { filename: 'large.bin' })
    file = made.body.id
    const stored = await fetch(`${app.url}/api/v1/files/${file}/content`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${project.key.token}`, 'content-type': 'application/octet-stream' },
      body: Buffer.alloc(FILE_BYTES),
    })
    assert.ok(stored.ok)
    const text = { filename: 'large.txt', content: 'x'.repeat(900_000) }
    const created = await project.key.post('/documents', text)
    assert.equal(created.status, 201, JSON.stringify(created.body))
    document = created.body.id
    consoleFile = /\/app\/assets\/[^"]+\.js/.exec(await (await fetch(`${web.url}/app`)).text())?.[0] ?? ''
  })
  after(async () => {
    await web.kill()
  })

  /** Whether the process still has its side of a connection open, as the kernel of Linux counts it. */
  const isOpen = async (socket: Socket) => {
    const hex = (port: number) => port.toString(16).toUpperCase().padStart(4, '0')
    const own = `:${hex(Number(new URL(web.url).port))}`
    const rows = (await readFile('/proc/net/tcp', 'utf8')).split('\n').map(row => row.trim().split(/\s+/))
    const row = rows.find(([, local, remote]) => local?.endsWith(own) && remote?.endsWith(`:${hex(localPort(socket))}`))
    // 01 is ESTABLISHED, also before the process accepts the connection.
    return row?.[3] === '01'
  }

  const ports = new WeakMap<Socket, number>()
  const localPort = (socket: Socket) => ports.get(socket) as number

  const open = async () => {
    const socket = connect(Number(new URL(web.url).port), '127.0.0.1')
    socket.on('error', () => {})
    socket.pause()
    await once(socket, 'connect')
    ports.set(socket, socket.localPort as number)
    return socket
  }

  /** Sends requests at the pace of the server, which refuses a connection with too many waiting requests. */
  const pipeline = async (socket: Socket, path: string, count: number) => {
    for (let sent = 0; sent < count; sent += 20) {
      socket.write(head(path).repeat(Math.min(20, count - sent)))
      await sleep(count > 100 ? 40 : 0)
    }
  }

  const head = (path: string) => `GET ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${project.key.token}\r\n\r\n`

  /** Returns the number of bytes that a connection still gets until it ends. */
  const rest = async (socket: Socket) => {
    socket.resume()
    // Not `once`, which rejects when a write meets the ended connection.
    if (!socket.closed) await new Promise(resolve => socket.once('close', resolve))
    return socket.bytesRead
  }

  const sizeOf = async (path: string) => {
    const answer = await fetch(web.url + path, { headers: { authorization: `Bearer ${project.key.token}` } })
    return (await answer.arrayBuffer()).byteLength
  }

  const large: [string, () => string][] = [
    ['the description', () => '/openapi.json'],
    ['the index of the documentation', () => '/docs/search.json'],
    ['a file of the console', () => consoleFile],
    ['a record', () => `/api/v1/documents/${document}`],
    ['a download', () => `/api/v1/files/${file}/download`],
    ['a refusal', () => `/api/v1/${'x'.repeat(14_000)}`],
    ['a path without a route', () => `/${'x'.repeat(14_000)}`],
  ]

  it('ends its connection, whichever code wrote the response', async () => {
    await Promise.all(
      large.map(async ([what, pathOf]) => {
        const path = pathOf()
        const size = await sizeOf(path)
        const count = Math.min(Math.ceil(BEYOND_KERNEL / size), 1500)
        const socket = await open()
        await pipeline(socket, path, count)
        await eventually(async () => !(await isOpen(socket)), { what: `end of the connection: ${what}` })
        assert.ok((await rest(socket)) < count * size, what)
      }),
    )
  })

  it('is one at a time on a connection, and holds no memory of later ones', async () => {
    const before = (await resident(web.pid)).now
    const idle = await Promise.all(Array.from({ length: 10 }, open))
    await Promise.all(idle.map(socket => pipeline(socket, `/api/v1/documents/${document}`, 60)))
    await eventually(async () => !(await Promise.all(idle.map(isOpen))).includes(true))
    const { most } = await resident(web.pid)
    // 540 MB of responses; the part that is collected immediately depends on the machine.
    assert.ok(most - before < 270 * MIB, `${(most - before) / MIB} MiB`)
    for (const socket of idle) socket.destroy()
  })

  it('does not end the connection of a slow reader, or of an open stream', async () => {
    const stream = await open()
    stream.resume()
    stream.write(head('/api/v1/activity/stream') + head(`/api/v1/documents/${document}`).repeat(3))
    const slow = await open()
    slow.write(head(`/api/v1/files/${file}/download`))
    const started = Date.now()
    while (slow.bytesRead < FILE_BYTES && !slow.closed) {
      slow.resume()
      await once(slow, 'data')
      slow.pause()
      await sleep(15)
    }
    assert.ok(Date.now() - started > IDLE * 1.5)
    assert.ok(slow.bytesRead > FILE_BYTES)
    assert.ok(await isOpen(stream))
    const served = web.output.filter(line => line.includes(`/documents/${document}`)).length
    stream.destroy()
    await sleep(500)
    assert.equal(web.output.filter(line => line.includes(`/documents/${document}`)).length, served)
    slow.destroy()
  })

  it('has at most a hundred requests waiting after it', async () => {
    const stream = await open()
    stream.write(head('/api/v1/activity/stream') + head('/api/v1/documents').repeat(100))
    await sleep(500)
    assert.ok(await isOpen(stream))
    stream.write(head('/api/v1/documents'))
    await eventually(async () => !(await isOpen(stream)))
    stream.destroy()
  })
})
