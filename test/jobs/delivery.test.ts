import { strict as assert } from 'node:assert'
import type { ServerResponse } from 'node:http'
import { createServer } from 'node:net'
import { retryDelayMs } from '#control/webhooks/deliver.ts'
import { manualClock } from '#core/base/clock.ts'
import { sql } from '#core/db/sql.ts'
import { client, eventually, startApp, type TestApp } from '../support/app.ts'
import { emitNamed } from '../support/events.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { type Received, type Receiver, readSignature, startReceiver } from '../support/receiver.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

type Delivery = {
  id: string
  status: string
  attempts: number
  status_code: number | null
  response_body: string | null
  next_attempt_at: string | null
  last_attempt_at: string | null
}

/** What the tests of one application do with its API. */
function using(app: TestApp) {
  const tools = {
    project: '',
    async hook(url: string, more: object = {}) {
      return (await createdBy(app.admin, '/webhooks', {
        project_id: tools.project,
        name: 'hook',
        url,
        events: ['secrets.*'],
        ...more,
      })) as { id: string; secret: string }
    },
    async write() {
      const name = `s${Math.random()}`
      return (await createdBy(app.admin, '/secrets', { project_id: tools.project, name, value: 'a value' })) as {
        id: string
      }
    },
    async deliveries(webhook: string, query = '') {
      const { body } = await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}&limit=100${query}`)
      return body as { data: Delivery[]; total: number }
    },
    /** The one delivery of a webhook once it has ended. */
    async ended(webhook: string, within?: number) {
      return await eventually(
        async () => (await tools.deliveries(webhook)).data.find(({ status }) => status !== 'queued'),
        { within, what: 'the end of the delivery' },
      )
    },
  }
  return tools
}

describe('delivery', () => {
  const app = forSuite(() =>
    startApp({ together: true, workers: ['delivery'], env: { WEBHOOK_TIMEOUT_MS: '1000', WEBHOOK_LEASE_MS: '3000' } }),
  )
  let receiver: Receiver
  let use: ReturnType<typeof using>

  before(async () => {
    use = using(app)
  })
  beforeEach(async () => {
    receiver = await startReceiver()
    use.project = (await app.project()).id
  })
  afterEach(async () => await receiver.close())

  it('that fails three times ends as failed, a second and two later, each attempt signed again', async () => {
    receiver.answer = 500
    const { id, secret } = await use.hook(receiver.url)
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    const waiting = await eventually(async () => {
      const [row] = (await use.deliveries(id)).data
      return row.attempts === 1 ? row : null
    })
    assert.equal(waiting.status, 'queued')
    assert.equal(waiting.status_code, 500)
    const wait = Date.parse(waiting.next_attempt_at!) - Date.parse(waiting.last_attempt_at!)
    assert.ok(wait >= 1000 && wait <= 1251, `next attempt after ${wait} ms`)
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'failed')
    assert.equal(delivery.attempts, 3)
    assert.equal(delivery.next_attempt_at, null)
    assert.equal(delivery.response_body, 'answered')
    assert.equal(receiver.requests.length, 3)
    const [first, second, third] = receiver.requests
    // When they are due, and not when the sweep finds them, every five seconds.
    assert.ok(second.at - first.at >= 990 && second.at - first.at < 4000, `${second.at - first.at} ms`)
    assert.ok(third.at - second.at >= 1990 && third.at - second.at < 4900, `${third.at - second.at} ms`)
    const times = receiver.requests.map(request => readSignature(request, secret))
    assert.equal(new Set(times.map(({ t }) => t)).size, 3)
    for (const { verified } of times) assert.deepEqual(verified, [true])
    assert.equal(new Set(receiver.requests.map(({ body }) => body)).size, 1)
    await pause(300)
    const lines = app.logs.map(line => JSON.parse(line)).filter(line => line.delivery_id === delivery.id)
    assert.deepEqual(
      lines.map(({ attempt, outcome, status, decision }) => ({ attempt, outcome, status, decision })),
      [
        { attempt: 1, outcome: 'failed', status: 500, decision: 'retry' },
        { attempt: 2, outcome: 'failed', status: 500, decision: 'retry' },
        { attempt: 3, outcome: 'failed', status: 500, decision: 'failed' },
      ],
    )
    for (const line of lines) {
      assert.equal(line.webhook_id, id)
      assert.ok(line.ms >= 0 && line.event_id)
    }
  })

  it('whose attempt breaks on our side leaves one line for it, with the cause', async () => {
    receiver.answer = 500
    const { id } = await use.hook(receiver.url)
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    await app.pool.query(sql.unsafe`delete from events where project_id = ${use.project}`)
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'failed')
    assert.equal(receiver.requests.length, 1)
    const lines = await eventually(() => {
      const found = app.logs.map(line => JSON.parse(line)).filter(line => line.delivery_id === delivery.id)
      return found.length >= 3 ? found : null
    })
    assert.deepEqual(
      lines.map(line => [line.msg, line.attempt, line.decision, typeof line.err?.stack]),
      [
        ['delivery attempt', 1, 'retry', 'undefined'],
        ['delivery attempt', 2, 'retry', 'string'],
        ['delivery attempt', 3, 'failed', 'string'],
      ],
    )
  })

  it('waits a second, then two, with up to a quarter more', () => {
    for (let i = 0; i < 200; i++) {
      assert.ok(retryDelayMs(1) >= 1000 && retryDelayMs(1) <= 1250)
      assert.ok(retryDelayMs(2) >= 2000 && retryDelayMs(2) <= 2500)
    }
  })

  it('that succeeds at the second attempt is completed', async () => {
    receiver.answer = 503
    const { id } = await use.hook(receiver.url)
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    receiver.answer = 204
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'completed')
    assert.equal(delivery.attempts, 2)
    assert.equal(delivery.status_code, 204)
    assert.equal(delivery.response_body, '')
  })

  const firstAttempt = (webhook: string) =>
    eventually(async () => {
      const [row] = (await use.deliveries(webhook)).data
      return row?.attempts >= 1 || row?.status === 'failed' ? row : null
    })

  it('to a receiver that hangs is cut off after the time-out', async () => {
    receiver.answer = () => {}
    const { id } = await use.hook(receiver.url)
    const started = performance.now()
    await use.write()
    const row = await firstAttempt(id)
    assert.equal(row.status, 'queued')
    assert.equal(row.status_code, null)
    assert.match(row.response_body!, /^timeout/)
    assert.ok(performance.now() - started >= 1000)
  })

  it('to a receiver that answers slowly within the time-out is completed', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end('late'), 700)
    const { id } = await use.hook(receiver.url)
    await use.write()
    assert.deepEqual((await use.ended(id)).response_body, 'late')
  })

  it('to a receiver that closes the connection, or is not there, is tried again', async () => {
    receiver.answer = (_, response) => response.socket?.destroy()
    const cut = await use.hook(receiver.url)
    const absent = await use.hook('http://127.0.0.1:9/')
    await use.write()
    for (const { id } of [cut, absent]) {
      const row = await firstAttempt(id)
      assert.equal(row.status, 'queued')
      assert.equal(row.status_code, null)
      assert.match(row.response_body!, /^connect: [^\n]+$/)
    }
  })

  it('keeps the first kilobyte of a long answer and reads no more', async () => {
    let sent = 0
    receiver.answer = (_, response) => {
      const write = () => {
        while (sent < 50_000_000 && !response.destroyed) {
          sent += 65_536
          if (!response.write(Buffer.alloc(65_536, 'x'))) return void response.once('drain', write)
        }
        response.end()
      }
      write()
    }
    const { id } = await use.hook(receiver.url)
    await use.write()
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'completed')
    assert.equal(delivery.response_body, 'x'.repeat(1024))
    assert.ok(sent < 50_000_000)
  })

  it('keeps an answer that is no text in a form the database can hold', async () => {
    receiver.answer = (_, response) => response.end(Buffer.from([0x61, 0, 0xff, 0xc3, 0x28, 0x62]))
    const { id } = await use.hook(receiver.url)
    await use.write()
    const delivery = await use.ended(id)
    assert.equal(delivery.response_body, 'a\ufffd\ufffd\ufffd(b')
  })

  it('follows 301, 302, 307 and 308 with the same body and headers', async () => {
    receiver.answer = ({ path }, response) => {
      const next = { '/hook': ['/a', 301], '/a': ['/b', 302], '/b': ['/c', 307], '/c': ['/d', 308] }[path]
      if (next) response.writeHead(next[1] as number, { location: next[0] as string })
      response.end('there')
    }
    const { id, secret } = await use.hook(receiver.url)
    await use.write()
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'completed')
    assert.equal(delivery.attempts, 1)
    assert.deepEqual(
      receiver.requests.map(({ path }) => path),
      ['/hook', '/a', '/b', '/c', '/d'],
    )
    assert.equal(new Set(receiver.requests.map(({ body }) => body)).size, 1)
    assert.deepEqual(readSignature(receiver.requests[4], secret).verified, [true])
  })

  it('fails an attempt that is redirected with 303 or too often', async () => {
    const to = (status: number) => (_: Received, response: ServerResponse) => {
      response.writeHead(status, { location: '/again' })
      response.end()
    }
    receiver.answer = to(303)
    const seeOther = await use.hook(receiver.url)
    await use.write()
    const row = await firstAttempt(seeOther.id)
    assert.equal(row.status, 'queued')
    assert.equal(row.status_code, 303)
    await app.admin.delete(`/webhooks/${seeOther.id}`)
    receiver.answer = to(307)
    receiver.requests.length = 0
    const endless = await use.hook(receiver.url)
    await use.write()
    const looped = await firstAttempt(endless.id)
    assert.equal(looped.status, 'queued')
    assert.match(looped.response_body!, /^redirects: /)
    assert.equal(receiver.requests.length, 6)
  })

  it('that is redirected to an internal address is closed without another attempt', async () => {
    receiver.answer = (_, response) => {
      response.writeHead(302, { location: 'http://169.254.169.254/latest' })
      response.end()
    }
    const { id } = await use.hook(receiver.url)
    await use.write()
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'failed')
    assert.equal(delivery.attempts, 0)
    assert.equal(delivery.next_attempt_at, null)
    assert.match(delivery.response_body!, /169\.254\.169\.254/)
    assert.equal(receiver.requests.length, 1)
  })

  it('whose secret does not open is closed and never sent unsigned', async () => {
    const { id } = await use.hook(receiver.url)
    await app.pool.query(sql.unsafe`update webhooks set sealed_secret = 'v1.00000000.AAAA.AAAA.AAAA' where id = ${id}`)
    await use.write()
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'failed')
    assert.equal(delivery.attempts, 0)
    assert.match(delivery.response_body!, /secret/)
    assert.equal(receiver.requests.length, 0)
  })

  it('that waits for its retry is sent although its webhook is off, and not once it is deleted', async () => {
    receiver.answer = 500
    const off = await use.hook(receiver.url)
    const deleted = await use.hook(`${receiver.url}/deleted`)
    await use.write()
    await eventually(() => receiver.requests.length === 2)
    receiver.answer = 200
    await app.admin.patch(`/webhooks/${off.id}`, { active: false })
    await app.admin.delete(`/webhooks/${deleted.id}`)
    assert.equal((await use.ended(off.id)).status, 'completed')
    await pause(500)
    assert.equal(receiver.requests.filter(({ path }) => path.endsWith('deleted')).length, 1)
  })

  it('makes at most five calls of one webhook concurrently, and does not wait for slow ones of another', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end(), 100)
    const slow = await use.hook(receiver.url)
    const hung = await startReceiver(() => {})
    await use.hook(hung.url)
    const quick = await startReceiver()
    const other = await use.hook(quick.url)
    await app.services.write(async tx => {
      for (let i = 0; i < 24; i++) emitNamed(tx, 'secrets.updated', use.project, { id: `sec_${i}` })
    })
    await eventually(() => quick.requests.length === 24)
    assert.ok(hung.requests.length < 24, 'the hanging receiver takes its time-out for each five')
    await eventually(async () => (await use.deliveries(slow.id, '&status=completed')).total === 24)
    assert.equal((await use.deliveries(other.id, '&status=completed')).total, 24)
    assert.equal(receiver.requests.length, 24)
    assert.equal(receiver.most, 5)
    assert.ok(hung.most <= 5)
    await quick.close()
    await hung.close()
  })

  it('continues when database connections are lost during it', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end(), 10)
    const { id } = await use.hook(receiver.url)
    await app.services.write(async tx => {
      for (let i = 0; i < 400; i++) emitNamed(tx, 'secrets.updated', use.project, { id: `sec_${i}` })
    })
    let lost = 0
    for (let i = 0; i < 5; i++) {
      await pause(100)
      const { rows } = await app.services.queues.db.executeSql(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and application_name like 'muster worker%'`,
      )
      lost += rows.length
    }
    const seen = () => new Set(receiver.requests.map(request => request.event.id)).size
    await eventually(() => seen() === 400)
    await eventually(async () => (await use.deliveries(id, '&status=completed')).total === 400)
    assert.ok(lost > 0)
    await eventually(
      async () =>
        (
          (await app.pool.anyFirst(
            sql.unsafe`select slot from webhook_slots where webhook_id = ${id} and holder is not null`,
          )) as number[]
        ).length === 0,
    )
  })

  it('is found by the sweep when no worker was notified', async () => {
    const { id } = await use.hook(receiver.url)
    await use.write()
    await use.ended(id)
    await app.pool.query(sql.unsafe`
      update webhook_deliveries set status = 'queued', next_attempt_at = now() where webhook_id = ${id}`)
    await eventually(() => receiver.requests.length === 2)
  })

  it('of one project leaves slots for others, and for each of its webhooks in turn', async () => {
    const share = 125
    // With the ordinary timeout, which no attempt exceeds on a busy machine.
    const own = await startApp({ workers: ['delivery'] })
    const others = using(own)
    let release = () => {}
    const released = new Promise<void>(resolve => {
      release = resolve
    })
    const slow = await startReceiver((_, response) => released.then(() => setTimeout(() => response.end(), 150)))
    const crowd = (await own.project()).id
    others.project = crowd
    await Promise.all(Array.from({ length: 40 }, () => others.hook(slow.url)))
    others.project = (await own.project()).id
    await others.hook(receiver.url)
    await own.services.write(async tx => {
      for (let i = 0; i < 20; i++) emitNamed(tx, 'secrets.updated', crowd, { id: `sec_${i}` })
    })
    await eventually(() => slow.most >= 100)
    const before = slow.requests.length
    await others.write()
    release()
    await eventually(() => receiver.requests.length === 1)
    const overtaking = slow.requests.length - before
    assert.ok(slow.requests.length < 800 && overtaking < 4 * share, `${overtaking} of the crowd came first`)
    await eventually(() => slow.requests.length === 800)
    assert.ok(slow.most <= share, `${slow.most} concurrently`)
    const left = () =>
      own.pool.oneFirst(
        sql.unsafe`select count(*) from webhook_deliveries where project_id = ${crowd} and status <> 'completed'`,
      )
    await eventually(async () => (await left()) === 0)
    await pause(500)
    assert.equal(slow.requests.length, 800)
    await own.close()
    await slow.close()
  })
})

describe('the egress rule', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'], env: { EGRESS_ALLOW_HOSTS: '' } }))

  it('closes deliveries to internal addresses before a connection is opened', async () => {
    let connections = 0
    const server = createServer(socket => {
      connections += 1
      socket.destroy()
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    const use = using(app)
    use.project = (await app.project()).id
    const hooks: { id: string }[] = []
    for (const host of ['127.0.0.1', 'localhost', '[::ffff:127.0.0.1]']) {
      hooks.push(await use.hook(`http://${host}:${port}/`))
    }
    await use.write()
    for (const { id } of hooks) {
      const delivery = await use.ended(id)
      assert.equal(delivery.status, 'failed')
      assert.equal(delivery.attempts, 0)
      assert.equal(delivery.next_attempt_at, null)
      assert.match(delivery.response_body!, /not a public address/)
    }
    assert.equal(connections, 0)
    server.close()
  })
})

describe('a webhook whose deliveries keep failing', () => {
  const BLOCKED = 'http://10.0.0.1/'
  const run = async (auto: boolean) => {
    const clock = manualClock()
    const app = await startApp({ workers: ['delivery'], clock, env: { WEBHOOK_AUTO_DISABLE: String(auto) } })
    const use = using(app)
    use.project = (await app.project()).id
    // Not on the allow-list: a delivery fails without three attempts.
    const { id } = await use.hook(BLOCKED)
    /** Failures in a row, which are counted after the deliveries have been settled. */
    const failures = () => app.pool.oneFirst(sql.unsafe`select failures from webhooks where id = ${id}`)
    const fail = async (count: number) => {
      const before = (await failures()) as number
      await app.services.write(async tx => {
        for (let i = 0; i < count; i++) emitNamed(tx, 'secrets.updated', use.project, { id: `sec_${i}` })
      })
      await eventually(async () => (await failures()) === before + count)
      await pause(200)
    }
    const active = async () => (await app.admin.get(`/webhooks/${id}`)).body.active
    const move = async (url: string) => assert.equal((await app.admin.patch(`/webhooks/${id}`, { url })).status, 200)
    return { app, clock, id, fail, failures, active, move, project: use.project }
  }

  it('is switched off after a hundred in a row over a day', async () => {
    const { app, clock, id, fail, active, project } = await run(true)
    try {
      await fail(120)
      assert.equal(await active(), true)
      clock.advance(23 * 3_600_000)
      await fail(1)
      assert.equal(await active(), true)
      clock.advance(3_600_000)
      await fail(1)
      await eventually(async () => (await active()) === false)
      const { data } = (await app.admin.get(`/events?project_id=${project}&resource_id=${id}&event=webhooks.updated`))
        .body
      assert.equal(data.length, 1)
      assert.equal(data[0].data.active, false)
      const filed = async () =>
        (await app.admin.get(`/exceptions?project_id=${project}&kind=webhook_failing`)).body.data
      const [exception, ...more] = await eventually(async () => {
        const items = await filed()
        return items.length > 0 ? items : null
      })
      assert.deepEqual([exception.severity, exception.detail.webhook_id, more.length], ['warning', id, 0])
      await app.admin.patch(`/webhooks/${id}`, { active: true })
      await fail(1)
      assert.equal(await active(), true)
    } finally {
      await app.close()
    }
  })

  it('restarts its count with a success', async () => {
    const { app, clock, id, fail, failures, active, move, project } = await run(true)
    const receiver = await startReceiver()
    try {
      await fail(99)
      await move(receiver.url)
      await app.services.write(async tx => emitNamed(tx, 'secrets.updated', project, { id: 'sec_well' }))
      await eventually(async () => (await failures()) === 0)
      await move(BLOCKED)
      clock.advance(25 * 3_600_000)
      await fail(1)
      assert.equal(await active(), true)
      const row = await app.pool.one(sql.unsafe`select failures, failing_since from webhooks where id = ${id}`)
      assert.deepEqual(row, { failures: 1, failing_since: clock.now().toISOString() })
    } finally {
      await receiver.close()
      await app.close()
    }
  })

  it('stays on where the deployment says so', async () => {
    const { app, clock, fail, active } = await run(false)
    try {
      await fail(100)
      clock.advance(25 * 3_600_000)
      await fail(1)
      assert.equal(await active(), true)
    } finally {
      await app.close()
    }
  })
})

describe('delivery by processes that die', () => {
  const app = forSuite(startApp)
  let receiver: Receiver
  let use: ReturnType<typeof using>
  let workers: TestProcess[]
  const lease = { WEBHOOK_TIMEOUT_MS: '1500', WEBHOOK_LEASE_MS: '2000', WEBHOOK_SWEEP_INTERVAL_MS: '500' }

  before(async () => {
    use = using(app)
  })
  beforeEach(async () => {
    workers = []
    receiver = await startReceiver()
    use.project = (await app.project()).id
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(workers.map(worker => worker.kill()))
    await receiver.close()
  })
  const worker = async (env: Record<string, string> = lease) => {
    const started = await startProcess('worker', app.databaseUrl, env, ['delivery'])
    workers.push(started)
    return started
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = lease) => steady.start(app.databaseUrl, env, ['delivery'])

  it('happens when the web process is killed right after the commit, and the workers were killed before', async () => {
    const { id } = await use.hook(receiver.url)
    const dead = await worker()
    await dead.kill()
    const web = await startProcess('web', app.databaseUrl)
    const body = { project_id: use.project, name: 'last words', value: 'x' }
    assert.equal((await client(web.url, app.admin.token).post('/secrets', body)).status, 201)
    await web.kill()
    assert.equal(receiver.requests.length, 0)
    await steadyWorker()
    await eventually(() => receiver.requests.length === 1)
    assert.equal((await use.ended(id)).status, 'completed')
    await pause(300)
    assert.equal(receiver.requests.length, 1)
  })

  it('is attempted again immediately when a worker follows a killed one, and the lost attempt does not count', async () => {
    receiver.answer = () => {}
    const { id } = await use.hook(receiver.url)
    const long = { WEBHOOK_LEASE_MS: '600000', WEBHOOK_SWEEP_INTERVAL_MS: '600000' }
    const first = await worker(long)
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    await first.kill()
    const [row] = (await use.deliveries(id)).data
    assert.equal(row.status, 'queued')
    assert.equal(row.attempts, 0)
    receiver.answer = 200
    await steadyWorker(long)
    const delivery = await use.ended(id)
    assert.equal(delivery.status, 'completed')
    assert.equal(delivery.attempts, 1)
    assert.equal(receiver.requests.length, 2)
  })

  it('is not held up by a worker that was killed with attempts in flight', async () => {
    receiver.answer = () => {}
    await use.hook(receiver.url)
    const first = await worker({ WEBHOOK_SWEEP_INTERVAL_MS: '500' })
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    await first.kill()
    receiver.answer = 200
    await steadyWorker({ WEBHOOK_SWEEP_INTERVAL_MS: '500' })
    await use.write()
    // Requests in flight again, and the new one; the lease is a minute.
    await eventually(() => receiver.requests.length === 3)
  })

  it('leaves no trace of a worker that was paused past its lease', async () => {
    let answerFirst: ((status: number) => void) | undefined
    receiver.answer = (_, response) => {
      if (answerFirst) return response.end('second')
      answerFirst = status => {
        response.statusCode = status
        response.end('first')
      }
    }
    const { id } = await use.hook(receiver.url)
    const paused = await steadyWorker()
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    process.kill(paused.pid, 'SIGSTOP')
    answerFirst?.(500)
    await steadyWorker()
    const ended = await use.ended(id)
    assert.equal(ended.response_body, 'second')
    assert.equal(ended.attempts, 1)
    process.kill(paused.pid, 'SIGCONT')
    await eventually(() => paused.output.some(line => line.includes('"decision":"lost"')))
    await pause(1000)
    assert.deepEqual((await use.deliveries(id)).data, [ended])
    assert.equal(receiver.requests.length, 2)
  })

  it('is finished by a worker that receives a stop signal, or requeued immediately', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end('in time'), 500)
    const { id } = await use.hook(receiver.url)
    const first = await worker()
    await use.write()
    await eventually(() => receiver.requests.length === 1)
    assert.deepEqual(await first.kill('SIGTERM'), { code: 0, signal: null })
    const [done] = (await use.deliveries(id)).data
    assert.equal(done.response_body, 'in time')

    receiver.answer = () => {}
    const second = await worker({ SHUTDOWN_GRACE_MS: '300' })
    await use.write()
    await eventually(() => receiver.requests.length === 2)
    assert.deepEqual(await second.kill('SIGTERM'), { code: 0, signal: null })
    const [given] = (await use.deliveries(id)).data
    assert.equal(given.status, 'queued')
    assert.equal(given.attempts, 0)
    receiver.answer = 200
    await steadyWorker({ WEBHOOK_SWEEP_INTERVAL_MS: '500' })
    await eventually(() => receiver.requests.length === 3)
  })

  it('makes 200 deliveries of 200 concurrent writes with two workers, none twice, five concurrently', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end('ok'), 5)
    const { id } = await use.hook(receiver.url)
    await Promise.all([steadyWorker({}), steadyWorker({})])
    await Promise.all(Array.from({ length: 200 }, () => use.write()))
    await eventually(async () => (await use.deliveries(id, '&status=completed')).total === 200)
    await pause(300)
    assert.equal((await use.deliveries(id)).total, 200)
    assert.equal(receiver.requests.length, 200)
    assert.equal(new Set(receiver.requests.map(request => request.event.id)).size, 200)
    assert.equal(new Set(receiver.requests.map(request => request.headers['x-svc-delivery'])).size, 200)
    assert.ok(receiver.most <= 5, `${receiver.most} concurrently`)
    assert.ok(receiver.most >= 2)
    const slots = await app.pool.anyFirst(
      sql.unsafe`select slot from webhook_slots where webhook_id = ${id} and holder is not null`,
    )
    assert.deepEqual(slots, [])
  })

  it('keeps to five concurrent deliveries of each webhook while two workers share a backlog', async () => {
    receiver.answer = (_, response) => void setTimeout(() => response.end('ok'), 40)
    const second = await startReceiver((_, response) => void setTimeout(() => response.end('ok'), 40))
    const hooks = [await use.hook(receiver.url), await use.hook(second.url)]
    await app.services.write(async tx => {
      for (let i = 0; i < 150; i++) emitNamed(tx, 'secrets.updated', use.project, { id: `sec_${i}` })
    })
    await Promise.all([steadyWorker({}), steadyWorker({})])
    for (const { id } of hooks)
      await eventually(async () => (await use.deliveries(id, '&status=completed')).total === 150)
    for (const each of [receiver, second]) {
      assert.equal(each.requests.length, 150)
      assert.equal(each.most, 5)
    }
    await second.close()
  })
})
