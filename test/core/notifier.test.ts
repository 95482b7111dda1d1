import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { silentLog } from '#core/base/log.ts'
import { type Notifier, openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { createWriter, type Writer } from '#core/writes/writer.ts'
import { serverUrl } from '../support/postgres.ts'
import { type ResettingProxy, startResettingProxy } from '../support/resetting-proxy.ts'

describe('core/notifier', () => {
  const channel = `notifier ${process.pid}`
  const applicationName = `muster-notifier-test-${process.pid}`
  const log = silentLog()
  let databaseUrl: string
  let client: pg.Client
  let pool: Pool
  let proxy: ResettingProxy
  let listen: Notifications
  let notifier: Notifier
  let writer: Writer
  let heard: string[]
  let settled = 0

  before(async () => {
    databaseUrl = await serverUrl()
    client = new pg.Client({ connectionString: databaseUrl })
    await client.connect()
    pool = await openPool({ databaseUrl, connections: 4 })
    proxy = await startResettingProxy(databaseUrl)
    listen = await openNotifications({ databaseUrl, log })
    await listen.listen(channel, payload => heard.push(payload)).ready
    await client.query('create table if not exists notifier_test (n int)')
  })

  beforeEach(() => {
    heard = []
    notifier = openNotifier({ databaseUrl: proxy.url, applicationName, log })
    const queues = { insert: async () => [], sendCtes: async () => [] }
    writer = createWriter({ pool, queues, notifier, eventMaxBytes: 1000, onError: () => assert.fail() })
  })

  afterEach(() => notifier.close())

  after(async () => {
    await client.query('drop table notifier_test')
    await listen.close()
    await proxy.close()
    await pool.end()
    await client.end()
  })

  async function until(what: string, done: () => boolean | Promise<boolean>): Promise<void> {
    for (const deadline = Date.now() + 30_000; !(await done()); await sleep(5)) {
      if (Date.now() > deadline) throw new Error(`not reached: ${what}; received ${heard}`)
    }
  }

  const notify = (...payloads: string[]) => notifier.notify(...payloads.map(payload => ({ channel, payload })))
  /** Waits until everything that was notified before has arrived. */
  const settle = async () => {
    const last = `settled ${++settled}`
    notify(last)
    await until(last, () => heard.includes(last))
    return heard.filter(payload => !payload.startsWith('settled'))
  }
  /** Has a notice arrive whose statement is not answered. While the answer to the one before is awaited it would not be sent. */
  const unanswered = async (payload: string) => {
    for (;;) {
      await settle()
      heard = []
      proxy.hold()
      notify(payload)
      for (const deadline = Date.now() + 2000; heard.length === 0 && Date.now() < deadline; ) await sleep(5)
      if (heard.length > 0) return
      proxy.release()
    }
  }
  const sessions = async () =>
    (await client.query('select pid from pg_stat_activity where application_name = $1', [applicationName])).rows

  it('is closed without having been used', async () => {
    await notifier.close()
    assert.deepEqual(await sessions(), [])
  })

  it('sends notifications after the commit and none after a rollback', async () => {
    let seenBefore: string[] = []
    await writer.write(async tx => {
      tx.notify(channel, 'written')
      await tx.nested(async inner => inner.notify(channel, 'nested'))
      await tx
        .nested(async inner => {
          inner.notify(channel, 'undone')
          throw new Error('undone')
        })
        .catch(() => {})
      await tx.query(sql.unsafe`insert into notifier_test values (1)`)
      seenBefore = await settle()
    })
    await assert.rejects(
      writer.write(async tx => {
        tx.notify(channel, 'rolled back')
        throw new Error('rolled back')
      }),
    )
    assert.deepEqual(seenBefore, [])
    assert.deepEqual((await settle()).sort(), ['nested', 'written'])
  })

  it('sends notifications of a single statement whose guard is true', async () => {
    const change = (n: number) =>
      writer.writeOne(outgoing => {
        outgoing.notify(channel, `of ${n}`)
        return {
          ctes: [sql.fragment`changed as (update notifier_test set n = 2 where n = ${n} returning n)`],
          guard: sql.fragment`exists (select from changed)`,
          columns: sql.fragment`1 as one`,
        }
      })
    await client.query('truncate notifier_test; insert into notifier_test values (1)')
    assert.equal((await change(7)).held, false)
    assert.equal((await change(1)).held, true)
    assert.deepEqual(await settle(), ['of 1'])
  })

  it('sends an invalidation with the commit, on the same connection', async () => {
    await writer.write(async tx => tx.invalidate(channel, 'dropped'))
    await until('dropped', () => heard.length === 1)
    assert.deepEqual(await sessions(), [])
  })

  it('delays no commit while its statement waits, and sends pending notifications once with one statement', async () => {
    await unanswered('first')
    try {
      for (let n = 0; n < 20; n++) {
        await writer.write(async tx => {
          await tx.query(sql.unsafe`insert into notifier_test values (${n})`)
          tx.notify(channel, n % 2 ? 'odd' : 'even')
        })
      }
      assert.deepEqual(heard, ['first'])
    } finally {
      proxy.release()
    }
    assert.deepEqual(await settle(), ['first', 'even', 'odd'])
  })

  it('drops notifications while 16 MiB of them are pending', async () => {
    const large = (n: number) => String(n).padEnd(7000, '-')
    const pending = Math.ceil((16 * 1024 * 1024) / `${channel} ${large(0)}`.length)
    await unanswered('first')
    for (let n = 0; n < pending + 100; n++) notify(large(n))
    proxy.release()
    await until('all that were kept', () => heard.length > pending)
    assert.equal((await settle()).length, 1 + pending)
  })

  it('reopens a lost connection and repeats unanswered notifications', async () => {
    await unanswered('under way')
    notify('waiting')
    proxy.resetAll()
    proxy.release()
    assert.deepEqual(await settle(), ['under way', 'under way', 'waiting'])
  })

  it('sends pending notifications when it is closed', async () => {
    notify('first')
    notify('last')
    await notifier.close()
    await until('both', () => heard.length === 2)
    await until('no connection', async () => (await sessions()).length === 0)
    notify('too late')
    assert.deepEqual(heard, ['first', 'last'])
  })
})
