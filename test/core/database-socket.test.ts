import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { loadConfig, loadSettings } from '#config.ts'
import { addressOf, parseDatabaseUrl } from '#core/db/database-url.ts'
import { openPool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { startEmbedded } from '#local/postgres.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../support/app.ts'
import { muster } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

describe('a database with a Unix socket', function () {
  this.timeout(120_000)

  const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-socket-'))
  const dir = path.join(base, 'pg')
  before(() => fs.chmodSync(base, 0o755))
  after(() => fs.rmSync(base, { recursive: true, force: true }))

  const server = forSuite(async () => {
    const { url, stop } = await startEmbedded({ dir, ephemeral: true })
    const { port, password } = new URL(url)
    return {
      password,
      port,
      /** The URL without a host in its authority. */
      url: `postgres://muster:${password}@/muster?host=${encodeURIComponent(dir)}&port=${port}`,
      close: stop,
    }
  })

  it('is named by its directory, in each way of libpq, and never uses TLS', () => {
    for (const url of [
      'postgres://u:p@/d?host=/run/postgresql&port=5433',
      'postgresql:///d?host=%2Frun%2Fpostgresql&port=5433&user=u&password=p',
      'postgres://u:p@%2Frun%2Fpostgresql:5433/d',
      'postgres://u:p@localhost:5433/d?host=/run/postgresql&sslmode=require&sslrootcert=/nowhere',
    ]) {
      assert.equal(addressOf(url), '/run/postgresql:5433/d', url)
      const [parsed] = parseDatabaseUrl(url).urls
      assert.equal(new URL(parsed).searchParams.get('sslmode'), 'disable')
      assert.equal(new URL(parsed).searchParams.get('sslrootcert'), null)
    }
    assert.equal(addressOf('postgres://u:p@/d?host=/run/postgresql,b'), '/run/postgresql,b/d')
    const long = `/${'x'.repeat(100)}`
    assert.throws(() => loadSettings({ DATABASE_URL: `postgres://u:p@/d?host=${long}` }), /DATABASE_URL: .*103 bytes/)
    const parts = { DATABASE_HOST: '/run/a b', DATABASE_USER: 'u', DATABASE_PASSWORD: 'p@', DATABASE_NAME: 'd' }
    assert.equal(addressOf(loadConfig(parts).DATABASE_URL), '/run/a b:5432/d')
  })

  it('serves every command, web and worker, and a turn', async () => {
    const { url, password, port } = server
    const settings = { DATABASE_URL: url, ADMIN_PASSWORD: 'correct horse battery' }
    for (const command of [
      ['migrate'],
      ['bootstrap', '--username', 'admin'],
      ['secrets', 'verify'],
      ['secrets', 'reencrypt'],
      ['oauth', 'rotate-keys'],
      ['reprocess', 'deliveries'],
      ['reprocess', 'dead-letters', 'list'],
      ['doctor'],
    ]) {
      const { code, stdout, stderr } = await muster(command, settings)
      // Without workers the diagnosis fails.
      if (command[0] === 'doctor') assert.match(stdout, /ok +connections/, stderr)
      else assert.equal(code, 0, `${command}: ${stderr}`)
      assert.ok(!`${stdout}${stderr}`.includes(password))
    }
    const parts = { DATABASE_HOST: dir, DATABASE_PORT: port, DATABASE_USER: 'muster', DATABASE_NAME: 'muster' }
    const migrated = await muster(['migrate', '--json'], { ...parts, DATABASE_PASSWORD: password, DATABASE_URL: '' })
    assert.deepEqual(JSON.parse(migrated.stdout).ran, [], migrated.stderr)

    const app = await startAgentApp({ databaseUrl: url, workers: [] })
    const env = { SHUTDOWN_GRACE_MS: '500', EGRESS_ALLOW_HOSTS: '127.0.0.1' }
    const processes = await Promise.all([startProcess('web', url, env), startProcess('worker', url, env)])
    try {
      const key = client(processes[0].url, app.key.token)
      const turn = await key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(turn.status, 200, JSON.stringify(turn.body))
      assert.match(JSON.stringify(turn.body.output), /echo: hello/)
      const stream = await fetch(`${processes[0].url}/api/v1/generations/${turn.body.id}/stream`, {
        headers: { authorization: `Bearer ${app.key.token}` },
      })
      assert.match(await stream.text(), /echo: hello/)
      const addresses = await app.services.pool.any(
        rawQuery(`select distinct client_addr from pg_stat_activity where datname = 'muster'`),
      )
      assert.deepEqual(addresses, [{ client_addr: null }])
      for (const { output } of processes)
        for (const line of output) assert.ok(!line.includes(password), `password in ${line}`)
    } finally {
      await Promise.all(processes.map(process => process.kill()))
      await app.close()
    }
  })

  it('that does not answer is reported without its password', async () => {
    const missing = `postgres://muster:hunter2@/muster?host=${encodeURIComponent(path.join(base, 'nowhere'))}`
    for (const command of [['migrate'], ['doctor'], ['secrets', 'verify']]) {
      const { code, stdout, stderr } = await muster(command, { DATABASE_URL: missing })
      assert.equal(code, 1)
      assert.match(`${stdout}${stderr}`, /nowhere.*ENOENT|ENOENT.*nowhere/)
      assert.ok(!`${stdout}${stderr}`.includes('hunter2'))
    }
    await assert.rejects(migrate(missing), /ENOENT/)
    await assert.rejects(openPool({ databaseUrl: missing, connections: 1 }), /ENOENT/)
  })
})
