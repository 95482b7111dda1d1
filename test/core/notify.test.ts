import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { silentLog } from '#core/base/log.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { countStatements } from '../bench/http.ts'
import { tcpUrl } from '../support/environment.ts'
import { serverUrl } from '../support/postgres.ts'

describe('core/notify', () => {
  const channel = `Test "channel" ${process.pid}`
  const applicationName = `muster-notify-test-${process.pid}`
  const log = silentLog()
  let databaseUrl: string
  let client: pg.Client
  let notifications: Notifications | undefined

  before(async () => {
    databaseUrl = await serverUrl()
    client = new pg.Client({ connectionString: databaseUrl })
    await client.connect()
  })

  afterEach(async () => {
    await notifications?.close()
    notifications = undefined
  })

  after(async () => {
    await client.end()
  })

  const notify = (payload: string) => client.query('select pg_notify($1, $2)', [channel, payload])

  async function until(what: string, done: () => boolean): Promise<void> {
    for (const deadline = Date.now() + 30_000; !done(); await sleep(5)) {
      if (Date.now() > deadline) throw new Error(`not reached: ${what}`)
    }
  }

  it('every listener of a channel receives each payload until it unsubscribes', async () => {
    notifications = await openNotifications({ databaseUrl, log, applicationName })
    const first: string[] = []
    const second: string[] = []
    const end = notifications.listen(channel, payload => first.push(payload))
    const endSecond = notifications.listen(channel, payload => second.push(payload))
    await Promise.all([end.ready, endSecond.ready])
    await notify('one')
    await until('both', () => second.length === 1)
    end()
    await notify('two')
    await until('second', () => second.length === 2)
    assert.deepEqual(first, ['one'])
    endSecond()
    const again: string[] = []
    await notifications.listen(channel, payload => again.push(payload)).ready
    await notify('three')
    await until('again', () => again.length === 1)
    assert.deepEqual(second, ['one', 'two'])
  })

  it('keeps a channel between short subscriptions, and leaves it when it is idle', async () => {
    notifications = await openNotifications({ databaseUrl, log, applicationName, idleMs: 300 })
    const { texts, stop } = countStatements()
    try {
      for (let n = 0; n < 5; n++) {
        const end = notifications.listen(channel, () => {})
        await end.ready
        end()
      }
      assert.deepEqual(texts, [`listen ${pg.escapeIdentifier(channel)}`])
      await until('left', () => texts.includes(`unlisten ${pg.escapeIdentifier(channel)}`))
      await notifications.listen(channel, () => {}).ready
      assert.equal(texts.length, 3)
    } finally {
      stop()
    }
  })

  it('a handler that throws affects no other handler', async () => {
    notifications = await openNotifications({ databaseUrl, log, applicationName })
    const seen: string[] = []
    notifications.listen(channel, () => {
      throw new Error('broken')
    })
    await notifications.listen(channel, payload => seen.push(payload)).ready
    await notify('one')
    await until('seen', () => seen.length === 1)
  })

  it('reports and reopens a lost connection, and calls onReconnect of listeners', async () => {
    const events: string[] = []
    notifications = await openNotifications({
      databaseUrl,
      log,
      applicationName,
      onDown: () => events.push('down'),
      onUp: () => events.push('up'),
    })
    const seen: string[] = []
    await notifications.listen(channel, payload => seen.push(payload), { onReconnect: () => events.push('look') }).ready
    assert.equal(notifications.healthy(), true)
    await client.query('select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1', [
      applicationName,
    ])
    await until('down', () => events.includes('down'))
    assert.equal(notifications.healthy(), false)
    await until('look', () => events.includes('look'))
    assert.deepEqual(events, ['down', 'up', 'look'])
    assert.equal(notifications.healthy(), true)
    await notify('after')
    await until('after', () => seen.length === 1)
  })

  it('the heartbeat detects an unresponsive connection', async () => {
    const { port, hostname } = tcpUrl(databaseUrl)
    const sockets: net.Socket[] = []
    const proxy = net.createServer(socket => {
      const server = net.connect(Number(port || 5432), hostname)
      for (const end of [socket, server]) end.on('error', () => {})
      socket.pipe(server).pipe(socket)
      sockets.push(socket, server)
    })
    proxy.listen(0, '127.0.0.1')
    await once(proxy, 'listening')
    const through = tcpUrl(databaseUrl)
    through.hostname = '127.0.0.1'
    through.port = String((proxy.address() as net.AddressInfo).port)
    let up = 0
    notifications = await openNotifications({
      databaseUrl: through.href,
      log,
      applicationName,
      heartbeatMs: 50,
      heartbeatTimeoutMs: 1500,
      onUp: () => {
        up += 1
      },
    })
    const seen: string[] = []
    await notifications.listen(channel, payload => seen.push(payload)).ready
    // Both ends stay open and nothing passes any more.
    for (const socket of sockets) socket.unpipe().pause()
    await until('up again', () => up === 1)
    await notify('after')
    await until('after', () => seen.length === 1)
    await notifications.close()
    for (const socket of sockets) socket.destroy()
    proxy.close()
  })

  it('throws when the first connection fails', async () => {
    const url = new URL(databaseUrl)
    url.pathname = '/no_such_database'
    await assert.rejects(openNotifications({ databaseUrl: url.href, log }), /does not exist/)
  })
})
