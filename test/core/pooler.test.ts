import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { ConfigError } from '#core/base/config.ts'
import { requireConnections } from '#core/db/connections.ts'
import { hasFaultyPruning } from '#core/db/pg-client.ts'
import { cloneTemplate, quietPort, tcpUrl } from '../support/postgres.ts'
import { startProcess } from '../support/processes.ts'

const PGBOUNCER =
  process.env.PGBOUNCER_BIN ||
  [...(process.env.PATH ?? '').split(path.delimiter), '/usr/sbin', '/usr/local/sbin']
    .map(directory => path.join(directory, 'pgbouncer'))
    .find(fs.existsSync)
/** What the pooler drops of the settings of a session. */
const SETTINGS = {
  timezone: 'UTC',
  statement_timeout: '60s',
  idle_in_transaction_session_timeout: '60s',
  enable_partition_pruning: 'off',
}
/** Values with which a process refuses to start. */
const WRONG: typeof SETTINGS = {
  timezone: 'Asia/Tokyo',
  statement_timeout: '0',
  idle_in_transaction_session_timeout: '0',
  enable_partition_pruning: 'on',
}
const NOBODY = 65_534
const IGNORED = 'options,statement_timeout,idle_in_transaction_session_timeout,extra_float_digits'

describe('connections through PgBouncer', function () {
  this.timeout(60_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let dir: string
  const started: ChildProcess[] = []

  before(async function () {
    if (!PGBOUNCER) {
      console.log('pooler: skipped, no pgbouncer on the PATH or in PGBOUNCER_BIN')
      this.skip()
    }
    database = await cloneTemplate()
    dir = fs.mkdtempSync(path.join(tmpdir(), 'muster-pgbouncer-'))
    fs.chmodSync(dir, 0o755)
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    for (const [name, value] of Object.entries(SETTINGS))
      await client.query(`alter database ${pg.escapeIdentifier(client.database as string)} set ${name} to '${value}'`)
    await client.end()
  })

  afterEach(async () => {
    for (const child of started.splice(0)) {
      if (child.exitCode !== null || child.signalCode !== null) continue
      child.kill('SIGKILL')
      await once(child, 'exit')
    }
  })

  after(async () => {
    await database?.drop()
    if (dir) fs.rmSync(dir, { recursive: true })
  })

  /** Starts a pooler before the database; its address. */
  async function pooler(settings: Record<string, string>): Promise<string> {
    const url = tcpUrl(database.url)
    const port = await quietPort()
    const file = path.join(dir, `${port}.ini`)
    const server = `host=${url.hostname} port=${url.port} user=${url.username} password=${decodeURIComponent(url.password)}`
    const all = {
      listen_addr: '127.0.0.1',
      listen_port: String(port),
      unix_socket_dir: '',
      auth_type: 'any',
      default_pool_size: '60',
    }
    const lines = Object.entries({ ...all, ...settings }).map(([name, value]) => `${name} = ${value}`)
    fs.writeFileSync(file, `[databases]\n* = ${server}\n[pgbouncer]\n${lines.join('\n')}\n`)
    // It refuses to run as root.
    const owner = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
    const child = spawn(PGBOUNCER as string, [file], { stdio: 'ignore', ...owner })
    started.push(child)
    url.host = `127.0.0.1:${port}`
    for (;;) {
      const client = new pg.Client({ connectionString: url.href })
      client.on('error', () => {})
      const isUp = await client.connect().then(
        () => true,
        error => error.code !== 'ECONNREFUSED' && Promise.reject(error),
      )
      await client.end()
      if (isUp) return url.href
      if (child.exitCode !== null) throw new Error('pgbouncer has ended')
      await sleep(20)
    }
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

  /** Protocol-level prepared statements in transaction mode came with 1.21. */
  const keepsStatements = (): boolean => {
    const { stdout } = spawnSync(PGBOUNCER as string, ['--version'], { encoding: 'utf8' })
    const [, major, minor] = /(\d+)\.(\d+)/.exec(stdout) as RegExpExecArray
    return Number(major) > 1 || Number(minor) >= 21
  }

  it('names the startup parameters that the pooler must ignore', async () => {
    const message = await refusal(await pooler({ pool_mode: 'session' }))
    assert.match(
      message,
      /^DATABASE_URL: the pooler answers "unsupported startup parameter.*ignore_startup_parameters = options,/,
    )
  })

  for (const name of Object.keys(SETTINGS) as (keyof typeof SETTINGS)[])
    it(`names ${name} if the pooler drops it, and the connections that keep the previous settings`, async () => {
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

  /** Web and worker are ready, and what one writes wakes the other. */
  async function works(urls: Record<string, string>): Promise<void> {
    const env = { ...urls, ADMIN_USERNAME: 'root', ADMIN_PASSWORD: 'a fine password' }
    const web = await startProcess('web', urls.DATABASE_URL, env)
    const worker = await startProcess('worker', urls.DATABASE_URL, env)
    started.push(web.child, worker.child)
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
