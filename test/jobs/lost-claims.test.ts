import assert from 'node:assert/strict'
import { z } from 'zod'
import { silentLog } from '#core/base/log.ts'
import { openNotifications } from '#core/db/notify.ts'
import { watchServer } from '#core/db/server-watchdog.ts'
import { sql } from '#core/db/sql.ts'
import { queues as declaredQueues, openQueues } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import { startWorkers } from '#core/work/worker.ts'
import { eventually, startApp } from '../support/app.ts'
import { claimsMessages, startSilentProxy } from '../support/silent-proxy.ts'
import { forSuite } from '../support/suite.ts'

/** Ten seconds are promised; the rest is the machine's. The shortest lease of a queue is a minute. */
const WITHIN_MS = 30_000

describe('claims whose answer is lost', function () {
  this.timeout(120_000)
  const app = forSuite(startApp)
  const proxy = forSuite(() => startSilentProxy(app.databaseUrl))

  it('give their messages back, in every queue', async () => {
    const log = silentLog()
    const { notifier, pool } = app.services
    // Any message will do: it is not for the handlers of the application.
    const open = declaredQueues.all().map(queue => ({
      ...queue,
      message: z.looseObject({}),
      key: queue.key && (() => 'key'),
      project: queue.project && (() => 'project'),
    }))
    const notifications = await openNotifications({ databaseUrl: proxy.url, log })
    const watchdog = watchServer({ databaseUrl: proxy.url, listenUrl: proxy.url, notifications, log })
    const queues = await openQueues({ databaseUrl: proxy.url, connections: open.length + 5, notifier, log })
    const handled: string[] = []
    const handlers = open.map(queue =>
      handler(queue, { concurrency: 1 }, async () => {
        handled.push(queue.name)
      }),
    )
    const lost = Promise.all(open.map(({ name }) => proxy.loseAnswer(claimsMessages(name))))
    await app.services.queues.send(open.map(queue => ({ queue, data: {} })))
    const start = (some: typeof handlers) =>
      startWorkers({
        services: { ...app.services, queues },
        handlers: some,
        listen: notifications,
        concurrency: 1,
      })
    let workers = await start(handlers)
    try {
      await lost
      const names = open.map(({ name }) => name)
      await eventually(() => handled.length >= names.length, { within: WITHIN_MS, what: 'all messages' })
      assert.deepEqual(handled.splice(0).toSorted(), names.toSorted())

      // A message whose worker was lost is claimed by another statement.
      await workers.stop(0)
      const [first] = open
      await app.services.queues.send([{ queue: first, data: {} }])
      await pool.query(sql.unsafe`
        update pgboss.job_common set blocked = true, data = data || '{"worker_losses": 1}'
        where name = ${first.name} and state = 'created'`)
      const lostSuspect = proxy.loseAnswer(sent => /ran_alone/.test(sent))
      workers = await start(handlers.slice(0, 1))
      await lostSuspect
      assert.deepEqual(handled, [])
      await eventually(() => handled.length === 1, { within: WITHIN_MS, what: 'the suspect' })
    } finally {
      await workers.stop(0)
      watchdog.close()
      await notifications.close()
      await queues.close()
    }
  })
})
