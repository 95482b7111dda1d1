import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { type Notifier, openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { loadModules } from '#core/modules/module.ts'
import {
  createQueuesInDatabase,
  openQueues,
  type Queues,
  queueMessage,
  queues as queueTable,
  wakeChannel,
} from '#core/queues/queue.ts'
import { type Handler, handler, schedule } from '#core/work/handler.ts'
import { filterUnstored } from '#core/work/message-claims.ts'
import { startWorkers } from '#core/work/worker.ts'
import { modules } from '#modules.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { tasks } from '../support/queue-fixtures.ts'

describe('idle workers', function () {
  this.timeout(60_000)
  let databaseUrl: string
  let notifier: Notifier
  let listen: Notifications
  let queues: Queues

  before(async () => {
    databaseUrl = await createDatabase()
    queueTable.fill([tasks])
    await createQueuesInDatabase(databaseUrl)
    notifier = openNotifier({ databaseUrl, log: silentLog() })
    listen = await openNotifications({ databaseUrl, log: silentLog() })
    queues = await openQueues({ databaseUrl, connections: 2, notifier, log: silentLog() })
  })

  after(async () => {
    await queues?.close()
    await listen?.close()
    await notifier?.close()
    loadModules(modules)
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  /** Runs a worker with a schedule of every second until `isDone`. Returns the queues whose workers were notified. */
  async function notifiedUntil(
    isDone: (notified: readonly string[]) => boolean,
    handlers: Handler[] = [],
  ): Promise<string[]> {
    const notified: string[] = []
    const unsubscribe = listen.listen(wakeChannel, name => void notified.push(name))
    await unsubscribe.ready
    // Polls find none of the messages.
    const never = { pollMs: 60_000, idleMs: 60_000 }
    const services = { queues, log: silentLog(), config: loadConfig(testEnvironment(databaseUrl)) }
    const schedules = [schedule('test-tick', 1, tasks, instant => ({ id: instant.toISOString() }))]
    const workers = await startWorkers({ services, handlers, schedules, concurrency: 1, listen, ...never })
    while (!isDone(notified)) await sleep(10)
    await workers.stop(0)
    // Notifications arrive in their order: all before this one have.
    const barrier = Promise.withResolvers<void>()
    const last = listen.listen('test_barrier', () => barrier.resolve())
    await last.ready
    notifier.notify({ channel: 'test_barrier', payload: '' })
    await barrier.promise
    last()
    unsubscribe()
    return notified
  }

  it('a message of a schedule is handled by the worker that stored it, and wakes no other', async () => {
    let handled = 0
    const handles = handler(tasks, {}, async () => void handled++)
    assert.deepEqual(await notifiedUntil(() => handled >= 2, [handles]), [])
  })

  it('a message of a schedule wakes all workers if its sender has no handler', async () => {
    assert.ok((await notifiedUntil(notified => notified.length > 0)).includes(tasks.name))
  })

  it('finds the messages that are not stored yet', async () => {
    const [stored, other] = ['stored', 'other'].map(id => ({ ...queueMessage(tasks, { id }), id: randomUUID() }))
    await queues.send([stored])
    assert.deepEqual(await filterUnstored(queues.db, [stored, other]), [other])
  })

  it('keeps unused sessions, with the statements that they have prepared', async () => {
    const readSession = async () => {
      const { rows } = await queues.db.executeSql(
        `select pg_backend_pid() as pid, array(select name from pg_prepared_statements) as prepared, pg_sleep(0.2)`,
      )
      return rows[0]
    }
    await queues.send([queueMessage(tasks, { id: 'prepared' })])
    const before = await Promise.all([readSession(), readSession()])
    assert.ok(before.some(({ prepared }) => prepared.includes(`send ${tasks.name}`)))
    // The pool's default is 10 s.
    await sleep(11_000)
    const after = await Promise.all([readSession(), readSession()])
    const pids = (sessions: { pid: number }[]) => sessions.map(({ pid }) => pid).sort()
    assert.deepEqual(pids(after), pids(before))
  })
})
