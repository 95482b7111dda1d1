import { z } from 'zod'
import { loadConfig } from '../../src/config.ts'
import { openNotifications } from '../../src/core/db/notify.ts'
import { type Handler, handler } from '../../src/core/jobs/handler.ts'
import {
  createQueuesInDatabase,
  entityMailbox,
  message,
  openQueues,
  queues as queueTable,
  workQueue,
} from '../../src/core/jobs/queue.ts'
import { startWorkers } from '../../src/core/jobs/worker.ts'
import { silentLog } from '../../src/core/process/log.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

/**
 * Messages a second through the worker with handlers that do nothing, beside a bare pg-boss fetch and complete loop on
 * the same backlog in the same run. Usage: node test/bench/queue.ts [messages, default 10000]
 */
const total = Number(process.argv[2] ?? 10_000)
const shape = z.object({ id: z.string(), project_id: z.string().optional() })
const options = { message: shape, concern: 'delivery' }
const work = workQueue('bench-work', options)
const shared = workQueue('bench-shared', { ...options, project: m => m.project_id })
const box = entityMailbox('bench-box', { ...options, key: m => m.id })

const name = `muster_bench_${process.pid}`
const databaseUrl = await createDatabase(name)
queueTable.fill([work, shared, box])
await createQueuesInDatabase(databaseUrl)
const log = silentLog()
const queues = await openQueues({ databaseUrl, connections: 6, log })
const services = { queues, log, config: loadConfig(testEnvironment(databaseUrl)) }
const listen = await openNotifications({ databaseUrl, log })

async function fill(queue: typeof work, projects = 1): Promise<number> {
  const started = performance.now()
  for (let sent = 0; sent < total; sent += 500) {
    const batch = Array.from({ length: Math.min(500, total - sent) }, (_, i) => sent + i)
    await queues.send(batch.map(i => message(queue, { id: `e${i}`, project_id: `p${i % projects}` })))
  }
  return rate(started)
}

const rate = (started: number) => Math.round((total * 1000) / (performance.now() - started))

async function bare(queue: typeof work, batchSize: number): Promise<number> {
  await fill(queue)
  const started = performance.now()
  for (let handled = 0; handled < total; ) {
    const jobs = await queues.boss.fetch(queue.name, { batchSize })
    if (jobs.length > 0) await queues.boss.complete(queue.name, jobs)
    handled += jobs.length
  }
  return rate(started)
}

async function drained(queue: typeof work): Promise<void> {
  for (;;) {
    const stats = (await queues.stats()).find(row => row.queue === queue.name)!
    if (stats.waiting + stats.active === 0) return
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

async function worker(queue: typeof work, declared: (count: () => void) => Handler, more = {}): Promise<number> {
  await fill(queue)
  let handled = 0
  let finish = () => {}
  const all = new Promise<void>(resolve => {
    finish = resolve
  })
  const started = performance.now()
  const workers = await startWorkers({
    services,
    handlers: [
      declared(() => {
        handled += 1
        if (handled === total) finish()
      }),
    ],
    concurrency: 10,
    listen,
    ...more,
  })
  await all
  await drained(queue)
  const result = rate(started)
  await workers.stop(1000)
  return result
}

/** Time from the send of one message to its handler, the queue being idle. */
async function latency(queue: typeof work): Promise<string> {
  let arrived = (_: number) => {}
  const workers = await startWorkers({
    services,
    handlers: [handler(queue, {}, async () => arrived(performance.now()))],
    concurrency: 10,
    listen,
  })
  const times: number[] = []
  for (let i = 0; i < 200; i++) {
    const arrival = new Promise<number>(resolve => {
      arrived = resolve
    })
    const sent = performance.now()
    await queues.send([message(queue, { id: `l${i}` })])
    times.push((await arrival) - sent)
    await new Promise(resolve => setTimeout(resolve, 5))
  }
  await workers.stop(1000)
  times.sort((a, b) => a - b)
  return `p50 ${times[100].toFixed(1)} ms, p99 ${times[198].toFixed(1)} ms`
}

const one = (queue: typeof work, concurrency: number) => (count: () => void) =>
  handler(queue, { concurrency }, async () => count())
const many = (queue: typeof work, batch: number) => (count: () => void) =>
  handler(queue, { concurrency: 2, batch }, async messages => messages.forEach(count))

try {
  const rows: Record<string, unknown>[] = []
  const row = (what: string, result: unknown) => rows.push({ what, result })
  row('send, 500 a statement', await fill(work))
  await drain(work)
  row('bare pg-boss, standard, 1 at a time', await bare(work, 1))
  row('bare pg-boss, standard, batches of 50', await bare(work, 50))
  row('bare pg-boss, stately, 1 at a time', await bare(box, 1))
  row('bare pg-boss, stately, batches of 50', await bare(box, 50))
  row('worker, standard, 1 slot', await worker(work, one(work, 1)))
  row('worker, standard, 10 slots', await worker(work, one(work, 10)))
  row('worker, standard, 50 slots', await worker(work, one(work, 50)))
  row('worker, standard, 10 slots, share 0.5, 1 project', await worker(shared, one(shared, 10), { projectShare: 0.5 }))
  row('worker, standard, batches of 100', await worker(work, many(work, 100)))
  row('worker, stately, 1 slot', await worker(box, one(box, 1)))
  row('worker, stately, 10 slots', await worker(box, one(box, 10)))
  row('worker, stately, 50 slots', await worker(box, one(box, 50)))
  row('worker, stately, batches of 100', await worker(box, many(box, 100)))
  console.table(rows)
  console.log('send to handler, standard:', await latency(work))
  console.log('send to handler, stately:', await latency(box))
} finally {
  await listen.close()
  await queues.close()
  await dropDatabase(name)
}

async function drain(queue: typeof work): Promise<void> {
  for (;;) {
    const jobs = await queues.boss.fetch(queue.name, { batchSize: 1000 })
    if (jobs.length === 0) return
    await queues.boss.complete(queue.name, jobs)
  }
}
