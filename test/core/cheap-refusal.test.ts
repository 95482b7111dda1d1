import assert from 'node:assert/strict'
import net from 'node:net'
import { startApp } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

/** What a request may cost before anybody is known, and what a body may cost before it is parsed. */
describe('a body', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let web: TestProcess
  before(async () => {
    web = await startProcess('web', app.databaseUrl)
  })
  after(async () => {
    await web.kill()
  })

  const cpu = async (): Promise<number> => {
    const stat = await (await import('node:fs/promises')).readFile(`/proc/${web.pid}/stat`, 'utf8')
    const [user, system] = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .slice(11, 13)
      .map(Number)
    return (user + system) * 10
  }

  /** Sends bytes as they are and reads until the server closes; how many of the body's bytes it took. */
  const raw = (head: string, body: Buffer) =>
    new Promise<{ status: number; closed: boolean; taken: number }>((resolve, reject) => {
      const socket = net.connect(Number(new URL(web.url).port), '127.0.0.1')
      let answer = ''
      let sent = 0
      socket.on('data', chunk => {
        answer += chunk
      })
      socket.on('error', () => {})
      socket.on('close', () =>
        answer
          ? resolve({ status: Number(answer.slice(9, 12)), closed: true, taken: sent })
          : reject(new Error('no answer')),
      )
      socket.write(head)
      const step = () => {
        if (sent >= body.length || socket.destroyed) return
        const piece = body.subarray(sent, sent + 65_536)
        sent += piece.length
        socket.write(piece, error => (error ? undefined : setImmediate(step)))
      }
      step()
    })

  const brackets = Buffer.alloc(10 * 1024 * 1024, '[')
  const head = (fields: string[]) =>
    ['POST /api/v1/actors HTTP/1.1', 'Host: x', 'Content-Type: application/json', ...fields, '', ''].join('\r\n')

  it('of an anonymous caller is not read beyond 64 KiB, and the connection ends', async () => {
    const before = await cpu()
    for (let round = 0; round < 20; round++) {
      const declared = await raw(head([`Content-Length: ${brackets.length}`]), brackets)
      assert.deepEqual([declared.status, declared.closed], [413, true])
    }
    // Twenty times 10 MB took a minute; it takes no time worth counting. The rest is starting up.
    assert.ok((await cpu()) - before < 5000)
  })

  it('of an anonymous caller without a length ends the same way', async () => {
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(0x100000, '['), Buffer.from('\r\n')])
    const { status, closed } = await raw(head(['Transfer-Encoding: chunked']), Buffer.concat([chunk, chunk]))
    assert.deepEqual([status, closed], [413, true])
  })

  it('of an anonymous caller that is small is 401, and with an invalid credential too', async () => {
    for (const fields of [[], ['Authorization: Bearer sk_0000000000000000000000000000000000000000000']]) {
      const body = Buffer.from('{"name":"a"}')
      const { status } = await raw(head([`Content-Length: ${body.length}`, 'Connection: close', ...fields]), body)
      assert.equal(status, 401)
    }
  })

  it('at a public route is bounded too', async () => {
    const body = JSON.stringify({ username: 'a', password: 'b'.repeat(100_000) })
    const reply = await app.anonymous.post('/users/login', body)
    assert.deepEqual([reply.status, reply.body.error.code], [413, 'REQUEST_REJECTED'])
  })

  it('is bounded in depth and in the number of its values before it is parsed', async () => {
    const problem = async (body: string) => {
      const reply = await project.key.post('/actors', body)
      assert.equal(reply.status, 400, JSON.stringify(reply.body))
      return reply.body.error.meta.problems[0].code
    }
    assert.equal(await problem(brackets.toString('latin1')), 'TOO_DEEP')
    assert.equal(await problem(`${'{"a":'.repeat(65)}1${'}'.repeat(65)}`), 'TOO_DEEP')
    const keys = Array.from({ length: 700_000 }, (_, index) => `"k${index}":1`).join(',')
    assert.equal(await problem(`{"name":"a","metadata":{${keys}}}`), 'TOO_MANY_VALUES')
    assert.equal(await problem(`{"name":"a","metadata":{"list":[${'1,'.repeat(100_000)}1]}}`), 'TOO_MANY_VALUES')
    // Brackets and commas of texts count as nothing.
    const text = `${'[{,'.repeat(60_000)}\\"`.slice(0, 60_000)
    const made = await project.key.post('/actors', { name: 'a', instructions: text })
    assert.equal(made.status, 201)
    assert.equal(made.body.instructions, text)
  })

  it('with as many keys as are allowed is checked against its own bounds', async () => {
    const metadata = Object.fromEntries(Array.from({ length: 45_000 }, (_, index) => [`k${index}`, 1]))
    const reply = await project.key.post('/actors', { name: 'a', metadata })
    assert.equal(reply.status, 400)
    assert.match(reply.body.error.meta.problems[0].message, /at most 16 KiB/)
  })
})

describe('connections of a project', () => {
  const app = forSuite(startApp)

  it('are at most a third of the pool: waiting for locked rows delays no other project', async () => {
    const [noisy, quiet] = [await app.project(), await app.project()]
    await quiet.key.post('/secrets', { name: 's', value: 'v' })
    const lock = new (await import('pg')).default.Client({ connectionString: app.databaseUrl })
    await lock.connect()
    await lock.query('begin; lock table actors in access exclusive mode')
    try {
      const waiting = Array.from({ length: 40 }, () => noisy.key.get('/actors'))
      // All of them have had their turn to take a connection.
      await new Promise(resolve => setTimeout(resolve, 300))
      for (let round = 0; round < 5; round++) assert.equal((await quiet.key.get('/secrets')).body.total, 1)
      const held = await lock.query(
        `select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      )
      assert.ok(held.rows[0].n >= 1 && held.rows[0].n <= 4, `${held.rows[0].n} connections wait`)
      await lock.query('rollback')
      for (const reply of await Promise.all(waiting)) assert.equal(reply.status, 200)
    } finally {
      await lock.end()
    }
  })

  it('are waited for in turn, and within a limit', async () => {
    const noisy = await app.project()
    const lock = new (await import('pg')).default.Client({ connectionString: app.databaseUrl })
    await lock.connect()
    await lock.query('begin; lock table actors in access exclusive mode')
    try {
      const waiting = Array.from({ length: 12 }, () => noisy.key.get('/actors'))
      const first = await Promise.race(waiting)
      assert.deepEqual([first.status, first.body.error.code], [503, 'SERVICE_NOT_READY'])
      assert.equal(first.headers.get('retry-after'), '1')
      await lock.query('rollback')
      await Promise.all(waiting)
    } finally {
      await lock.end()
    }
    assert.equal((await noisy.key.get('/actors')).status, 200)
  })
})
