import assert from 'node:assert/strict'
import fs from 'node:fs'
import { createServer, request } from 'node:http'
import net, { type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { createApp } from '#app.ts'
import { silentLog } from '#core/base/log.ts'
import { DatabaseUnresponsiveError } from '#core/db/database-errors.ts'
import { watchServer } from '#core/db/server-watchdog.ts'
import { sql } from '#core/db/sql.ts'
import { CELL_COUNT, client, eventually, startApp, type TestApp } from '../support/app.ts'
import { tcpUrl } from '../support/environment.ts'
import { scrape } from '../support/metrics.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

/** A relay before PostgreSQL that can break like a network does. */
type Relay = {
  url: string
  /**
   * `pass` forwards, `refuse` takes no connection, `silence` takes them and says nothing. Existing ones share its fate.
   */
  set(mode: 'pass' | 'refuse' | 'silence'): Promise<void>
  close(): Promise<void>
}

async function startRelay(databaseUrl: string): Promise<Relay> {
  const target = tcpUrl(databaseUrl)
  const pairs = new Set<[Socket, Socket]>()
  let mode: 'pass' | 'refuse' | 'silence' = 'pass'
  const server = net.createServer({ pauseOnConnect: true }, inward => {
    const outward = net.connect(Number(target.port), target.hostname)
    const pair: [Socket, Socket] = [inward, outward]
    pairs.add(pair)
    const end = () => {
      inward.destroy()
      outward.destroy()
      pairs.delete(pair)
    }
    for (const socket of pair) socket.on('error', end).on('close', end)
    if (mode === 'silence') return
    inward.pipe(outward).pipe(inward)
  })
  const listen = (port: number) => new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  await listen(0)
  const { port } = server.address() as AddressInfo
  const end = () => {
    for (const [inward, outward] of pairs) {
      inward.destroy()
      outward.destroy()
    }
  }
  const url = tcpUrl(databaseUrl)
  url.host = `127.0.0.1:${port}`
  return {
    url: url.href,
    async set(wanted) {
      const before = mode
      mode = wanted
      if (wanted === 'silence')
        for (const [inward, outward] of pairs) {
          inward.unpipe(outward)
          outward.unpipe(inward)
          inward.pause()
          outward.pause()
        }
      else end()
      if (wanted === 'refuse') await new Promise(resolve => server.close(resolve))
      else if (before === 'refuse') await listen(port)
    },
    async close() {
      end()
      if (server.listening) await new Promise(resolve => server.close(resolve))
    },
  }
}

type Timed = { status: number; body: any; ms: number; requestId: string | null }

async function timed(url: string): Promise<Timed> {
  const started = performance.now()
  const response = await fetch(url, { signal: AbortSignal.timeout(20_000) })
  const body = await response.json()
  return {
    status: response.status,
    body,
    ms: performance.now() - started,
    requestId: response.headers.get('x-request-id'),
  }
}

function assertNotReady({ status, body, ms }: Timed) {
  assert.equal(status, 503, JSON.stringify(body))
  // The checks have two seconds; the rest is the machine's.
  assert.ok(ms < 8000, `took ${Math.round(ms)} ms`)
  const { error } = body
  assert.equal(error.code, 'SERVICE_NOT_READY')
  for (const name of ['message', 'hint', 'docs_url']) assert.equal(typeof error[name], 'string')
  assert.notEqual(error.meta.checks.database, 'ok')
  for (const [name, result] of Object.entries(error.meta.checks)) {
    assert.match(name, /^[a-z]+$/)
    assert.ok(typeof result === 'string' && result.length <= 200)
    assert.doesNotMatch(result, /127\.0\.0\.1|muster|password|postgres:\/\//, 'says nothing of the deployment')
  }
}

describe('health of a process whose database is away', function () {
  this.timeout(90_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let relay: Relay
  let web: TestProcess
  let worker: TestProcess
  let admin: string
  before(async () => {
    database = await cloneTemplate()
    relay = await startRelay(database.url)
    web = await startProcess('web', relay.url, { ADMIN_USERNAME: 'root', ADMIN_PASSWORD: 'a fine password' })
    worker = await startProcess('worker', relay.url, { WORKER_HEARTBEAT_INTERVAL_MS: '200' })
    await Promise.all([web, worker].map(ready))
    const login = await fetch(`${web.url}/api/v1/users/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ username: 'root', password: 'a fine password' }),
    })
    admin = ((await login.json()) as { token: string }).token
  })
  after(async () => {
    await Promise.all([web?.kill(), worker?.kill()])
    await relay?.close()
    await database?.drop()
  })

  const ready = ({ url }: TestProcess) =>
    eventually(async () => (await timed(`${url}/readyz`)).status === 200, { what: 'ready' })

  it('is 200 at /readyz with every check ok while it is there', async () => {
    const { status, body } = await timed(`${web.url}/readyz`)
    assert.equal(status, 200)
    assert.deepEqual(body, {
      status: 'ok',
      checks: { database: 'ok', migrations: 'ok', queue: 'ok', storage: 'ok', notifications: 'ok' },
    })
    const beside = await timed(`${worker.url}/readyz`)
    assert.deepEqual(beside.body.checks, { ...body.checks, worker: 'ok' })
  })

  for (const mode of ['refuse', 'silence'] as const) {
    it(`${mode === 'refuse' ? 'refusing connections' : 'silent'}: /healthz is 200, /readyz 503 in time, and both recover`, async () => {
      await relay.set(mode)
      try {
        // Five seconds are promised; the rest is the machine's.
        const token = { authorization: `Bearer sk_${'a'.repeat(43)}` }
        const asked = [
          // First of all, so that nothing but its transaction waits for the database.
          () =>
            fetch(`${web.url}/api/v1/projects`, {
              method: 'POST',
              headers: { authorization: `Bearer ${admin}`, 'content-type': 'application/json' },
              body: JSON.stringify({ name: 'never' }),
            }),
          () => fetch(`${web.url}/api/v1/projects`, { headers: token }),
          () => fetch(`${web.url}/api/v1/actors`, { headers: { authorization: `Bearer ${admin}` } }),
        ]
        for (const together of [1, 40])
          for (const ask of asked) {
            const started = performance.now()
            const answers = await Promise.all(Array.from({ length: together }, ask))
            const ms = performance.now() - started
            for (const answer of answers) {
              assert.equal(answer.status, 503)
              assert.equal(answer.headers.get('retry-after'), '1')
              assert.equal(((await answer.json()) as any).error.code, 'SERVICE_NOT_READY')
            }
            assert.ok(ms < 12_000, `${together} took ${Math.round(ms)} ms`)
          }
        for (let round = 0; round < 3; round++) {
          for (const { url } of [web, worker]) {
            const alive = await timed(`${url}/healthz`)
            assert.deepEqual([alive.status, alive.body], [200, { status: 'ok' }])
            assert.ok(alive.ms < 1900, 'it waits for nothing from the database')
            assertNotReady(await timed(`${url}/readyz`))
          }
        }
        // What needs no database is served, what needs it fails in the error shape and within bounds.
        assert.equal((await timed(`${web.url}/errors.json`)).status, 200)
        const scraped = performance.now()
        assert.equal((await fetch(`${web.url}/metrics`, { signal: AbortSignal.timeout(10_000) })).status, 200)
        assert.ok(performance.now() - scraped < 8000)
      } finally {
        await relay.set('pass')
      }
      await Promise.all([web, worker].map(ready))
      const login = await fetch(`${web.url}/api/v1/users/login`, {
        method: 'POST',
        body: JSON.stringify({ username: 'root', password: 'a fine password' }),
      })
      assert.equal(login.status, 200)
      for (const { child } of [web, worker]) assert.equal(child.exitCode, null)
    })
  }

  it('with an address for notifications next to the address of a pooler, either of them makes it not ready while it is down', async () => {
    const beside = await startRelay(database.url)
    const both = await startProcess('web', relay.url, { DATABASE_LISTEN_URL: beside.url })
    try {
      await ready(both)
      await beside.set('refuse')
      let deaf = await timed(`${both.url}/readyz`)
      await eventually(async () => {
        deaf = await timed(`${both.url}/readyz`)
        return deaf.status === 503
      })
      const { checks } = deaf.body.error.meta
      assert.deepEqual([checks.database, checks.notifications], ['ok', 'not connected'])
      await beside.set('pass')
      await ready(both)
      await relay.set('silence')
      const started = performance.now()
      const headers = { authorization: `Bearer sk_${'a'.repeat(43)}` }
      assert.equal((await fetch(`${both.url}/api/v1/projects`, { headers })).status, 503)
      // Five seconds are promised; the rest is the machine's.
      assert.ok(performance.now() - started < 12_000)
    } finally {
      await relay.set('pass')
      await both.kill()
      await beside.close()
    }
  })

  it('costs statements of another database nothing', async () => {
    const watch = watchServer({
      databaseUrl: 'postgres://nobody@127.0.0.1:1/none',
      listenUrl: 'postgres://nobody@127.0.0.1:1/none',
      notifications: { healthy: () => false, ask: async () => null, reconnect: () => {} },
      log: silentLog(),
    })
    const other = new pg.Client({ connectionString: database.url })
    await other.connect()
    try {
      const slow = other.query('select pg_sleep(3)')
      await assert.rejects(
        watch.runWhileResponsive(() => new Promise(() => {})),
        DatabaseUnresponsiveError,
      )
      assert.equal(watch.isUnresponsive(), true)
      await slow
    } finally {
      watch.close()
      await other.end()
    }
  })

  it('that drops its connections once is ready again immediately', async () => {
    await relay.set('pass')
    await eventually(async () => (await timed(`${web.url}/readyz`)).status === 200)
    for (const { output } of [web, worker])
      assert.deepEqual(
        output.filter(line => /unhandled|uncaught/i.test(line)),
        [],
      )
  })

  describe('that takes no writes', () => {
    let direct: pg.Client
    before(async () => {
      direct = new pg.Client(database.url)
      await direct.connect()
    })
    after(() => direct.end())
    const checksOf = async ({ url }: TestProcess) => {
      const { status, body } = await timed(`${url}/readyz`)
      return status === 200 ? 'ok' : body.error.meta.checks.database
    }
    const created = () =>
      fetch(`${web.url}/api/v1/projects`, {
        method: 'POST',
        headers: { authorization: `Bearer ${admin}`, 'content-type': 'application/json' },
        body: JSON.stringify({ name: 'never' }),
      })
    const refused = async () => {
      const answer = await created()
      assert.deepEqual([answer.status, answer.headers.get('retry-after')], [503, '1'])
    }

    it('because it is read-only is not ready until it takes them again', async () => {
      const name = `"${new URL(database.url).pathname.slice(1)}"`
      const disconnect = () =>
        direct.query(`select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid()`)
      await direct.query(`alter database ${name} set default_transaction_read_only = on`)
      await disconnect()
      try {
        for (const each of [web, worker])
          await eventually(async () => (await checksOf(each)) === 'read-only', { what: 'not ready' })
        await refused()
      } finally {
        await direct.query('set default_transaction_read_only = off')
        await direct.query(`alter database ${name} reset default_transaction_read_only`)
        await disconnect()
      }
      await Promise.all([web, worker].map(ready))
    })

    it('because its disk is full is not ready until there is space', async () => {
      await direct.query(`create function full_disk() returns trigger language plpgsql as $$
        begin raise exception 'could not extend file' using errcode = 'disk_full'; end $$`)
      for (const table of ['write_probe', 'projects'])
        await direct.query(
          `create trigger full_disk before insert or update on ${table} for each row execute function full_disk()`,
        )
      try {
        // The last write counts for a quarter of a minute.
        for (const each of [web, worker])
          await eventually(async () => (await checksOf(each)) === 'disk full', { what: 'not ready' })
        await refused()
      } finally {
        await direct.query('drop function full_disk cascade')
      }
      await Promise.all([web, worker].map(ready))
    })

    it('is queried often and written rarely', async () => {
      const written = async () => (await direct.query('select written_at::text from write_probe')).rows[0].written_at
      await direct.query(`update write_probe set written_at = now() + interval '1 hour'`)
      const before = await written()
      for (let round = 0; round < 5; round++) for (const each of [web, worker]) assert.equal(await checksOf(each), 'ok')
      assert.equal(await written(), before)
      await direct.query(`update write_probe set written_at = '-infinity'`)
      assert.equal(await checksOf(web), 'ok')
      assert.notEqual(await written(), before)
    })
  })

  it('that lacks a migration is not ready, and says so', async () => {
    const direct = await startApp({ databaseUrl: database.url })
    try {
      const last = await direct.services.pool.one(
        sql.unsafe`delete from migrations where id = (select max(id) from migrations) returning name, run_on`,
      )
      const { status, body } = await timed(`${web.url}/readyz`)
      assert.equal(status, 503)
      assert.equal(body.error.meta.checks.database, 'ok')
      assert.match(body.error.meta.checks.migrations, /^(\d+) of (\d+) migrations: run muster migrate$/)
      await direct.services.pool.query(
        sql.unsafe`insert into migrations (name, run_on) values (${(last as any).name}, now())`,
      )
      assert.equal((await timed(`${web.url}/readyz`)).status, 200)
    } finally {
      await direct.close()
    }
  })
})

describe('/healthz', () => {
  it('answers without the database', async () => {
    const app = await startApp()
    try {
      const before = app.statements.length
      for (let round = 0; round < 5; round++) {
        const { status, body } = await app.anonymous.get('//healthz')
        assert.deepEqual([status, body], [200, { status: 'ok' }])
      }
      assert.equal(app.statements.length, before)
    } finally {
      await app.close()
    }
  })
})

describe('/metrics', () => {
  let app: TestApp
  after(() => app?.close())

  it('without METRICS_TOKEN is for loopback only, and for nothing that was forwarded', async () => {
    app = await startApp()
    const { status, headers, body } = await app.anonymous.get('//metrics')
    assert.equal(status, 200)
    assert.match(headers.get('content-type') as string, /^text\/plain/)
    assert.match(body, /^# HELP /m)
    const forwarded = await app.anonymous.get('//metrics', { 'x-forwarded-for': '127.0.0.1' })
    assert.deepEqual([forwarded.status, forwarded.body.error.code], [401, 'UNAUTHORIZED'])
    assert.equal((await app.anonymous.get('//metrics?x=1', { forwarded: 'for=127.0.0.1' })).status, 401)
  })

  it('without METRICS_TOKEN is refused to a peer that is not loopback', async () => {
    const second = createApp(app.services)
    const server = createServer(second.http)
    const socketPath = path.join(fs.mkdtempSync(path.join(tmpdir(), 'muster-metrics-')), 'socket')
    await new Promise<void>(resolve => server.listen(socketPath, resolve))
    try {
      const status = await new Promise((resolve, reject) =>
        request({ socketPath, path: '/metrics' }, response => {
          response.resume()
          resolve(response.statusCode)
        })
          .on('error', reject)
          .end(),
      )
      assert.equal(status, 401)
    } finally {
      await new Promise(resolve => server.close(resolve))
      fs.rmSync(path.dirname(socketPath), { recursive: true })
    }
  })

  it('counts requests by method, route and status, without ids', async () => {
    const { id, key } = await app.project()
    await app.admin.get(`/projects/${id}`)
    await key.get('/actors/missing')
    const { body } = await app.anonymous.get('//metrics')
    assert.match(body, /muster_requests_total\{method="GET",route="\/projects\/\{project_id\}",status="200"\} \d+/)
    assert.match(body, /muster_requests_total\{method="GET",route="\/actors\/\{actor_id\}",status="404"\} \d+/)
    assert.match(
      body,
      /muster_request_duration_seconds_bucket\{le="0\.01",method="POST",route="\/projects",status="201"\} \d+/,
    )
    assert.ok(!body.includes(id))
    assert.equal(body.includes('cell="'), CELL_COUNT > 1)
    for (const name of [
      'muster_queue_messages',
      'muster_queue_age_seconds',
      'muster_dead_letters',
      'muster_deliveries_total',
      'muster_audit_reads_dropped_total',
    ])
      assert.match(body, new RegExp(`^# TYPE ${name} `, 'm'))
  })

  it('shows the process: memory and the delay of the event loop', async () => {
    const { value } = await scrape(app.url)
    assert.ok((value('process_resident_memory_bytes') as number) > 50e6)
    assert.ok((value('nodejs_heap_size_used_bytes') as number) > 10e6)
    // A scrape resets it, and the first measurement after that has nothing to be compared with.
    await eventually(async () => {
      await sleep(120)
      const until = performance.now() + 150
      while (performance.now() < until);
      // A request over an open connection is answered in the same turn of the loop, before the timer that measures.
      await sleep(1)
      return ((await scrape(app.url)).value('nodejs_eventloop_lag_max_seconds') as number) >= 0.1
    })
  })

  it('shows how the connections to the database are used', async function () {
    if (CELL_COUNT > 1) return this.skip()
    const { id, key } = await app.project()
    const actors = await Promise.all(Array.from({ length: 2 }, () => key.post('/actors', { name: 'a' })))
    const connections = async (state: string) => (await scrape(app.url)).value('muster_database_connections', { state })
    const waiting = async (reason: string) => (await scrape(app.url)).value('muster_database_waiting', { reason })
    const max = (await connections('max')) as number
    // The rest is for the queues and for notifications.
    assert.ok(max > 2 && max < app.config.DATABASE_POOL_MAX)
    await eventually(async () => (await connections('in_use')) === 0)
    assert.ok(((await connections('idle')) as number) > 0)
    const blocker = new pg.Client({ connectionString: app.databaseUrl })
    await blocker.connect()
    try {
      await blocker.query('begin')
      await blocker.query('select from actors where project_id = $1 for update', [id])
      const held = actors.map(({ body }) => key.patch(`/actors/${body.id}`, { name: 'b' }))
      await eventually(async () => (await connections('in_use')) === 2)
      assert.equal(await waiting('project'), 0)
      // A project has a third of the connections; the rest of its work waits for its turn.
      const part = Math.floor(max / 3)
      held.push(...Array.from({ length: part }, () => key.patch(`/actors/${actors[0].body.id}`, { name: 'c' })))
      await eventually(async () => (await connections('in_use')) === part && (await waiting('project')) === 2)
      assert.equal(await waiting('pool'), 0)
      await blocker.query('rollback')
      for (const { status } of await Promise.all(held)) assert.equal(status, 200)
      assert.equal(await waiting('project'), 0)
    } finally {
      await blocker.end()
    }
  })

  it('with METRICS_TOKEN is for its bearer only, from anywhere', async () => {
    const guarded = await startApp({ env: { METRICS_TOKEN: 'the-token-of-the-scraper' } })
    try {
      const get = (authorization?: string, more: Record<string, string> = {}) =>
        client(guarded.url, null).get('//metrics', { ...(authorization ? { authorization } : {}), ...more })
      for (const wrong of [
        undefined,
        'Bearer',
        'Bearer x',
        'the-token-of-the-scraper',
        'Basic the-token-of-the-scraper',
        `Bearer ${guarded.admin.token}`,
        'Bearer the-token-of-the-scraper2',
      ]) {
        const { status, body, headers } = await get(wrong)
        assert.deepEqual([status, body.error.code], [401, 'UNAUTHORIZED'], wrong)
        assert.equal(headers.get('www-authenticate'), 'Bearer')
      }
      assert.equal((await get('Bearer the-token-of-the-scraper')).status, 200)
      assert.equal((await get('bearer the-token-of-the-scraper')).status, 200)
      assert.equal((await get('Bearer the-token-of-the-scraper', { 'x-forwarded-for': '1.2.3.4' })).status, 200)
    } finally {
      await guarded.close()
    }
  })
})
