import assert from 'node:assert/strict'
import net, { type AddressInfo } from 'node:net'
import { loadSettings } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { addressOf, parseDatabaseUrl, withParameters } from '#core/db/database-url.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { migrate } from '#core/queues/migrate.ts'
import { openQueues } from '#core/queues/queue.ts'
import { tcpUrl } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { cloneTemplate, quietPort } from '../support/postgres.ts'
import { startProcess } from '../support/processes.ts'

describe('the URL of the database', function () {
  this.timeout(90_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  /** Accepts connections and never answers. */
  const silent = net.createServer(socket => socket.on('error', () => {}))
  before(async () => {
    const { url, drop } = await cloneTemplate()
    database = { url: tcpUrl(url).href, drop }
    await new Promise<void>(resolve => silent.listen(0, '127.0.0.1', resolve))
  })
  after(async () => {
    silent.close()
    await database?.drop()
  })

  /** The URL with hosts in front of the server's. */
  const withHosts = (...hosts: string[]) => database.url.replace(new URL(database.url).host, hosts.join(','))
  const own = () => new URL(database.url).host
  const refusing = async () => `127.0.0.1:${await quietPort()}`
  const quiet = () => `127.0.0.1:${(silent.address() as AddressInfo).port}`
  const connected = async (connectionString: string, more: object = {}) => {
    const client = new DatabaseClient({ connectionString, connectionTimeoutMillis: 500, ...more })
    client.on('error', () => {})
    try {
      await client.connect()
      return `${client.host}:${client.port}`
    } finally {
      client.destroy()
    }
  }

  it('lists hosts with their ports, or has them in its parameters', () => {
    const hosts = (text: string) => parseDatabaseUrl(text).urls.map(url => addressOf(url))
    assert.deepEqual(hosts('postgres://u:p@a:1,b,[::1]:3/d?x=y'), ['a:1/d', 'b/d', '[::1]:3/d'])
    assert.deepEqual(hosts('postgresql:///d?host=a,b&port=1,2'), ['a:1/d', 'b:2/d'])
    assert.equal(addressOf('postgres://u:p@a:1,b:2/d?target_session_attrs=primary'), 'a:1,b:2/d')
    for (const [text, message] of [
      ['mysql://a/d', /must begin with postgres/],
      ['postgres://a,b/d?port=1,2,3', /3 ports for 2 hosts/],
      ['postgres://a/d?target_session_attrs=best', /target_session_attrs must be one of any, read-write/],
    ] as const) {
      assert.throws(() => parseDatabaseUrl(text), message)
      assert.throws(() => loadSettings({ DATABASE_URL: text }), /^Error: DATABASE_URL: /)
    }
  })

  it('adds options to those that it has', async () => {
    const url = withParameters(database.url, { options: '-c work_mem=5MB' })
    const queues = await openQueues({
      databaseUrl: url,
      connections: 1,
      notifier: { notify: () => {} },
      log: silentLog(),
    })
    const { rows } = await queues.db.executeSql(`select current_setting('work_mem') as work_mem,
      current_setting('enable_sort') as enable_sort, current_setting('tcp_user_timeout') as tcp_user_timeout`)
    await queues.close()
    assert.deepEqual(rows, [{ work_mem: '5MB', enable_sort: 'off', tcp_user_timeout: '15000' }])
  })

  it('tries its hosts in order, also silent ones, until one is the required server', async () => {
    const [server, closed] = [own(), await refusing()]
    assert.equal(await connected(withHosts(closed, server)), server)
    assert.equal(await connected(withHosts(quiet(), closed, server)), server)
    await assert.rejects(connected(withHosts(closed, quiet())), /ECONNREFUSED|timeout|terminated/)
    for (const target of ['read-write', 'primary', 'any', 'prefer-standby'])
      assert.equal(await connected(`${withHosts(closed, server)}?target_session_attrs=${target}`), server, target)
    for (const target of ['standby', 'read-only'])
      await assert.rejects(connected(`${withHosts(server)}?target_session_attrs=${target}`), /session is not/)
    const options = encodeURIComponent('-c default_transaction_read_only=on')
    assert.equal(await connected(`${withHosts(server)}?target_session_attrs=read-only&options=${options}`), server)
    await assert.rejects(
      connected(`${withHosts(server)}?target_session_attrs=read-write&options=${options}`),
      /session is not read-write/,
    )
    // As by libpq, a server that refuses the database ends the search.
    const wrong = withHosts(server, closed).replace(/\/[^/?]*(\?|$)/, '/no_such_database$1')
    await assert.rejects(connected(wrong), /does not exist/)
  })

  it('with several hosts serves web, worker, migrations and doctor', async () => {
    const url = `${withHosts(await refusing(), own())}?target_session_attrs=read-write`
    await migrate(url)
    const started = await Promise.all([
      startProcess('web', url, { ADMIN_USERNAME: 'root', ADMIN_PASSWORD: 'a fine password' }),
      startProcess('worker', url),
    ])
    try {
      for (const process of started) {
        const answer = await fetch(`${process.url}/readyz`)
        assert.equal(answer.status, 200, await answer.text())
      }
      const { stdout } = await muster(['doctor'], { DATABASE_URL: url })
      assert.match(stdout, /ok +database +PostgreSQL/)
    } finally {
      await Promise.all(started.map(each => each.kill()))
    }
  })
})
