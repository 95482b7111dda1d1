import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { z } from 'zod'
import { ConfigError } from '#core/base/config.ts'
import { requireConnections } from '#core/db/connections.ts'
import { hasFaultyPruning } from '#core/db/pg-client.ts'
import { openPool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { pooledUrl } from '../support/environment.ts'
import { IGNORED, isSince, PGBOUNCER, type Pooler, SETTINGS, startPooler, TRANSACTION_MODE } from '../support/pooler.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

/** Values with which a process refuses to start. */
const WRONG: typeof SETTINGS = {
  timezone: 'Asia/Tokyo',
  statement_timeout: '0',
  idle_in_transaction_session_timeout: '0',
  enable_partition_pruning: 'on',
}

const CLIENTS = 1000
const SERVER_CONNECTIONS = 50
const IDLE_MS = 3000
const numberRow = sql.type(z.strictObject({ n: z.int() }))

describe('connections through PgBouncer', function () {
  this.timeout(60_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  const started: TestProcess[] = []
  const poolers: Pooler[] = []

  before(async function () {
    if (!PGBOUNCER) {
      console.log('pooler: skipped, no pgbouncer on the PATH or in PGBOUNCER_BIN')
      this.skip()
    }
    database = await cloneTemplate()
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    for (const [name, value] of Object.entries(SETTINGS))
      await client.query(`alter database ${pg.escapeIdentifier(client.database as string)} set ${name} to '${value}'`)
    await client.end()
  })

  afterEach(async () => {
    for (const { kill } of started.splice(0)) await kill()
    for (const { stop } of poolers.splice(0)) await stop()
  })

  after(async () => {
    await database?.drop()
  })

  /** Starts a pooler before the database; its address. */
  async function pooler(settings: Record<string, string>): Promise<string> {
    const one = await startPooler(database.url, settings)
    poolers.push(one)
    return pooledUrl(database.url, one.port)
  }

  const refusal = async (DATABASE_URL: string, DATABASE_LISTEN_URL = DATABASE_URL): Promise<string> => {
    const error = await requireConnections({ DATABASE_URL, DATABASE_LISTEN_URL }).then(
      () => assert.fail('not refused'),
      error => error,
    )
    assert.ok(error instanceof ConfigError, error)
    assert.doesNotMatch(error.message, /\n/)
    return error.message
  }

  /** Protocol-level prepared statements in transaction mode came with 1.21 (its NEWS.md, October 2023). */
  const keepsStatements = () => isSince(21)
  /** The parameter `options` is read since 1.20 (August 2023); of the settings in it the pooler tracks the time zone only. */
  const keepsTimezone = () => isSince(20)

  it('names the startup parameters that the pooler must ignore', async () => {
    const message = await refusal(await pooler({ pool_mode: 'session' }))
    assert.match(
      message,
      /^DATABASE_URL: the pooler answers "unsupported startup parameter.*ignore_startup_parameters = options,/,
    )
  })

  for (const name of Object.keys(SETTINGS) as (keyof typeof SETTINGS)[])
    it(`names ${name} if the pooler drops it, and that its connections keep previous settings`, async () => {
      const owner = new pg.Client({ connectionString: database.url })
      await owner.connect()
      const { server_version } = (await owner.query('show server_version')).rows[0]
      if (name === 'enable_partition_pruning' && !hasFaultyPruning(server_version)) return owner.end()
      const alter = (change: string) =>
        owner.query(`alter database ${pg.escapeIdentifier(owner.database as string)} ${change}`)
      try {
        await alter(`set ${name} to '${WRONG[name]}'`)
        // In session mode each client has a session, in which it sets this itself.
        const pool_mode = name === 'enable_partition_pruning' ? 'transaction' : 'session'
        const url = await pooler({ pool_mode, ignore_startup_parameters: IGNORED })
        if (name === 'timezone' && keepsTimezone()) {
          await requireConnections({ DATABASE_URL: url, DATABASE_LISTEN_URL: database.url })
          return
        }
        const message = await refusal(url, database.url)
        assert.match(message, new RegExp(`^DATABASE_URL: the pooler drops ${name}: alter role .* set ${name} to '`))
        assert.match(message, /RECONNECT/)
      } finally {
        await alter(`set ${name} to '${SETTINGS[name]}'`)
        await owner.end()
      }
    })

  it('names a pool that is too small', async () => {
    const url = await pooler({ pool_mode: 'session', ignore_startup_parameters: IGNORED, default_pool_size: '1' })
    assert.match(await refusal(url, database.url), /^DATABASE_URL: no session of the server is free.*default_pool_size/)
  })

  it('reports the problem in transaction mode, or works with DATABASE_LISTEN_URL', async () => {
    const settings = { pool_mode: 'transaction', ignore_startup_parameters: IGNORED }
    const url = await pooler(keepsStatements() ? { ...settings, max_prepared_statements: '200' } : settings)
    if (!keepsStatements()) {
      assert.match(await refusal(url, database.url), /^DATABASE_URL: prepared statements are lost/)
      await assert.rejects(
        startProcess('web', url, { DATABASE_LISTEN_URL: database.url }),
        /prepared statements are lost/,
      )
      return
    }
    assert.match(await refusal(url), /^DATABASE_LISTEN_URL: notifications do not arrive/)
    await works({ DATABASE_URL: url, DATABASE_LISTEN_URL: database.url })
  })

  it('works in session mode, with and without DATABASE_LISTEN_URL', async () => {
    const url = await pooler({ pool_mode: 'session', ignore_startup_parameters: IGNORED })
    await requireConnections({ DATABASE_URL: url, DATABASE_LISTEN_URL: url })
    await works({ DATABASE_URL: url, DATABASE_LISTEN_URL: database.url })
  })

  it('shares 50 connections of the server among 1,000 clients', async function () {
    if (!keepsStatements()) return this.skip()
    this.timeout(180_000)
    const url = await pooler({
      ...TRANSACTION_MODE,
      default_pool_size: String(SERVER_CONNECTIONS),
      max_client_conn: String(2 * CLIENTS),
    })
    const pool = await openPool({ databaseUrl: url, connections: CLIENTS })
    const adminUrl = new URL(url)
    adminUrl.pathname = '/pgbouncer'
    const admin = new pg.Client({ connectionString: adminUrl.href })
    let isDone = false
    let answered = 0
    /** Uses one connection until the end, idle for most of the time. */
    const useConnection = (n: number, onStarted: () => void) =>
      pool.connect(async connection => {
        while (!isDone) {
          assert.deepEqual(await connection.one(numberRow`select ${n}::int as n`), { n })
          answered++
          onStarted()
          await sleep(IDLE_MS)
        }
      })
    try {
      await admin.connect()
      const all = []
      // In batches: a connection has three seconds to open.
      while (all.length < CLIENTS) {
        const started = []
        for (let n = 0; n < 20; n++) {
          const { promise, resolve } = Promise.withResolvers<void>()
          all.push(useConnection(all.length, resolve))
          started.push(promise)
        }
        await Promise.race([Promise.all(started), Promise.all(all)])
      }
      await works({ DATABASE_URL: url, DATABASE_LISTEN_URL: database.url })
      const before = answered
      await eventually(() => answered > before + 2 * CLIENTS)
      const pools: Record<string, any>[] = (await admin.query('show pools')).rows
      const [{ cl_active, cl_waiting, sv_active, sv_idle, sv_used }] = pools.filter(
        each => each.database !== 'pgbouncer',
      )
      const clients = Number(cl_active) + Number(cl_waiting)
      const connections = Number(sv_active) + Number(sv_idle) + Number(sv_used)
      assert.ok(clients >= CLIENTS, `${clients} clients`)
      assert.ok(connections <= SERVER_CONNECTIONS, `${connections} connections of the server`)
      isDone = true
      await Promise.all(all)
    } finally {
      isDone = true
      await admin.end()
      await pool.end()
    }
  })

  /** Web and worker are ready, and what one writes wakes the other. */
  async function works(urls: Record<string, string>): Promise<void> {
    const env = { ...urls, ADMIN_USERNAME: 'root', ADMIN_PASSWORD: 'a fine password' }
    const web = await startProcess('web', urls.DATABASE_URL, env)
    const worker = await startProcess('worker', urls.DATABASE_URL, env)
    started.push(web, worker)
    for (const { url } of [web, worker]) {
      // Often enough that the statements of the checks are prepared.
      for (let n = 0; n < 15; n++) {
        const answer = await fetch(`${url}/readyz`)
        assert.equal(answer.status, 200, await answer.text())
      }
    }
    const login = await fetch(`${web.url}/api/v1/users/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ username: 'root', password: 'a fine password' }),
    })
    assert.equal(login.status, 200)
  }
})
