import pg from 'pg'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { openNotifier } from '#core/db/notifier.ts'
import { openNotifications } from '#core/db/notify.ts'
import { openQueues, type Queue, queues as queueTable } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import { startWorkers } from '#core/work/worker.ts'
import { testEnvironment } from './environment.ts'
import * as fixtures from './queue-fixtures.ts'

/**
 * A worker process for tests. Arguments: database url, name, version of its queues. Writes what its handlers did into the tables `entity`,
 * `trail` and `spans` (see queue.test.ts), sends `ready` to its parent, stops on SIGTERM.
 */
const [databaseUrl, name, version = '1'] = process.argv.slice(2)
const declared = <M extends object>(queue: Queue<M>): Queue<M> => ({ ...queue, version: Number(version) })
const mailbox = declared(fixtures.mailbox)
const tasks = declared(fixtures.tasks)
const log = silentLog()
queueTable.fill([mailbox, tasks])
const notifier = openNotifier({ databaseUrl, log })
const queues = await openQueues({ databaseUrl, connections: 4, notifier, log })
const listen = await openNotifications({ databaseUrl, log })
const pool = new pg.Pool({ connectionString: databaseUrl, max: 12 })

async function transaction(work: (client: pg.PoolClient) => Promise<unknown>) {
  const client = await pool.connect()
  try {
    await client.query('begin')
    await work(client)
    await client.query('commit')
  } finally {
    client.release()
  }
}

const workers = await startWorkers({
  services: { queues, log, config: loadConfig(testEnvironment(databaseUrl)) },
  listen,
  concurrency: 10,
  handlers: [
    // Drains what the rows say, under the entity's row lock, and leaves the span it was active in.
    handler(mailbox, {}, async ({ id }) => {
      const { rows } = await pool.query(`insert into spans (entity, worker) values ($1, $2) returning n`, [id, name])
      await transaction(async client => {
        await client.query('select 1 from entity where id = $1 for update', [id])
        await client.query('update entity set seen = posted where id = $1', [id])
        await client.query('select pg_sleep(random() * 0.004)')
      })
      await pool.query('update spans set ended = clock_timestamp() where n = $1', [rows[0].n])
    }),
    handler(tasks, {}, async ({ id, ms = 0 }, { attempt, signal }) => {
      const trail = (what: string) =>
        pool.query('insert into trail (task, worker, attempt, what) values ($1, $2, $3, $4)', [id, name, attempt, what])
      await trail('start')
      await new Promise(resolve => setTimeout(resolve, ms))
      await trail(signal.aborted ? 'aborted' : 'end')
    }),
  ],
})

process.on('SIGTERM', async () => {
  await workers.stop(5000)
  await listen.close()
  await queues.close()
  await notifier.close()
  await pool.end()
  process.exit(0)
})
process.send?.('ready')
