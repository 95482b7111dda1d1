import { pathToFileURL } from 'node:url'
import { z } from 'zod'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { loadModules } from '#core/modules/module.ts'
import {
  createQueuesInDatabase,
  entityMailbox,
  openQueues,
  type Queue,
  type Queues,
  queueMessage,
  queues as queueTable,
  workQueue,
} from '#core/queues/queue.ts'
import { type Handler, handler } from '#core/work/handler.ts'
import { claimMessages } from '#core/work/message-claims.ts'
import { startWorkers } from '#core/work/worker.ts'
import { modules } from '#modules.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import type { Row } from './rows.ts'

/**
 * Messages a second through the worker with handlers that do nothing, next to a bare pg-boss fetch and complete loop on
 * the same backlog in the same run; time from a send to the handler when idle; the cost of a claim by how many messages
 * and projects wait. Usage: node test/bench/queue.ts [messages, default 10000]
 */
type Item = { id: string; project_id?: string }
type Bench = { queues: Queues; listen: Notifications; services: Parameters<typeof startWorkers>[0]['services'] }

const options = { message: z.object({ id: z.string(), project_id: z.string().optional() }), concern: 'delivery' }
const project = (item: Item) => item.project_id
const key = (item: Item) => item.id
const work = workQueue('bench-work', options)
const shared = workQueue('bench-shared', { ...options, project })
const box = entityMailbox('bench-box', { ...options, key })
const sharedBox = entityMailbox('bench-shared-box', { ...options, key, project })

const CLAIMS = 200

export async function run(total = 10_000): Promise<Row[]> {
  const name = `muster_bench_${process.pid}`
  const databaseUrl = await createDatabase(name)
  queueTable.fill([work, shared, box, sharedBox])
  await createQueuesInDatabase(databaseUrl)
  const log = silentLog()
  const notifier = openNotifier({ databaseUrl, log })
  const queues = await openQueues({ databaseUrl, connections: 6, notifier, log })
  // Read by takeovers.
  await queues.db.executeSql('create table worker_heartbeats (instance_id text primary key, holder text)', [])
  const listen = await openNotifications({ databaseUrl, log })
  const bench = { queues, listen, services: { queues, log, config: loadConfig(testEnvironment(databaseUrl)) } }
  try {
    return [...(await throughput(bench, total)), ...(await latencies(bench)), ...(await claims(bench))]
  } finally {
    await listen.close()
    await queues.close()
    await notifier.close()
    await dropDatabase(name)
    loadModules(modules)
  }
}

async function throughput(bench: Bench, total: number): Promise<Row[]> {
  const rows: Row[] = []
  const row = (what: string, value: number) => rows.push({ what, value, unit: '1/s' })
  const one = (queue: Queue<Item>, concurrency: number) => (count: () => void) =>
    handler(queue, { concurrency }, async () => count())
  const many = (queue: Queue<Item>, batch: number) => (count: () => void) =>
    handler(queue, { concurrency: 2, batch }, async messages => messages.forEach(count))
  const worker = (queue: Queue<Item>, declared: (count: () => void) => Handler, projects = 1, more = {}) =>
    throughWorker(bench, queue, total, projects, declared, more)

  row('send, 500 a statement', await fill(bench, work, total))
  row('bare pg-boss, standard, 1 at a time', await bare(bench, work, total, 1))
  row('bare pg-boss, standard, batches of 50', await bare(bench, work, total, 50))
  row('bare pg-boss, stately, 1 at a time', await bare(bench, box, total, 1))
  row('bare pg-boss, stately, batches of 50', await bare(bench, box, total, 50))
  row('worker, standard, 1 slot', await worker(work, one(work, 1)))
  row('worker, standard, 10 slots', await worker(work, one(work, 10)))
  row('worker, standard, 50 slots', await worker(work, one(work, 50)))
  row('worker, standard, batches of 100', await worker(work, many(work, 100)))
  for (const projects of [1, 20, 1000]) {
    const of = `share 0.5, ${projects} projects`
    row(`worker, standard, 10 slots, ${of}`, await worker(shared, one(shared, 10), projects, { projectShare: 0.5 }))
    row(
      `worker, stately, 10 slots, ${of}`,
      await worker(sharedBox, one(sharedBox, 10), projects, { projectShare: 0.5 }),
    )
  }
  row('worker, standard, batches of 100, 20 projects', await worker(shared, many(shared, 100), 20))
  row('worker, stately, 1 slot', await worker(box, one(box, 1)))
  row('worker, stately, 10 slots', await worker(box, one(box, 10)))
  row('worker, stately, 50 slots', await worker(box, one(box, 50)))
  row('worker, stately, batches of 100', await worker(box, many(box, 100)))
  return rows
}

async function fill({ queues }: Bench, queue: Queue<Item>, total: number, projects = 1): Promise<number> {
  await queues.db.executeSql('delete from pgboss.job_common')
  const started = performance.now()
  for (let sent = 0; sent < total; sent += 500) {
    const batch = Array.from({ length: Math.min(500, total - sent) }, (_, i) => sent + i)
    await queues.send(batch.map(i => queueMessage(queue, { id: `e${i}`, project_id: `p${i % projects}` })))
  }
  return rate(total, started)
}

const rate = (total: number, started: number) => Math.round((total * 1000) / (performance.now() - started))

async function bare(bench: Bench, queue: Queue<Item>, total: number, batchSize: number): Promise<number> {
  const { boss } = bench.queues
  await fill(bench, queue, total)
  const started = performance.now()
  for (let handled = 0; handled < total; ) {
    const jobs = await boss.fetch(queue.name, { batchSize })
    if (jobs.length > 0) await boss.complete(queue.name, jobs)
    handled += jobs.length
  }
  return rate(total, started)
}

async function throughWorker(
  bench: Bench,
  queue: Queue<Item>,
  total: number,
  projects: number,
  declared: (count: () => void) => Handler,
  more: object,
): Promise<number> {
  await fill(bench, queue, total, projects)
  const { services, listen, queues } = bench
  let handled = 0
  const { promise, resolve } = Promise.withResolvers<void>()
  const count = () => {
    handled += 1
    if (handled === total) resolve()
  }
  const started = performance.now()
  const workers = await startWorkers({ services, listen, handlers: [declared(count)], concurrency: 10, ...more })
  await promise
  for (;;) {
    const { waiting, active } = (await queues.stats()).find(row => row.queue === queue.name)!
    if (waiting + active === 0) break
    await new Promise(resume => setTimeout(resume, 20))
  }
  const result = rate(total, started)
  await workers.stop(1000)
  return result
}

/** Time from the send of one message to its handler, the queue being idle. */
async function latencies({ queues, listen, services }: Bench): Promise<Row[]> {
  const rows: Row[] = []
  for (const queue of [work, shared, box, sharedBox]) {
    let arrived = (_: number) => {}
    const handlers = [handler(queue, {}, async () => arrived(performance.now()))]
    const workers = await startWorkers({ services, listen, handlers, concurrency: 10 })
    const times: number[] = []
    for (let i = 0; i < 200; i++) {
      const arrival = new Promise<number>(resolve => {
        arrived = resolve
      })
      const sent = performance.now()
      await queues.send([queueMessage(queue, { id: `l${i}`, project_id: 'p' })])
      times.push((await arrival) - sent)
      await new Promise(resolve => setTimeout(resolve, 5))
    }
    await workers.stop(1000)
    times.sort((a, b) => a - b)
    const note = `p99 ${times[198].toFixed(1)} ms`
    rows.push({ what: `send to handler, ${queue.name}, p50`, value: Number(times[100].toFixed(1)), unit: 'ms', note })
  }
  return rows
}

/** The claim of one message and of ten, each rolled back. */
async function claims(bench: Bench): Promise<Row[]> {
  const { queues } = bench
  const rows: Row[] = []
  for (const queue of [shared, sharedBox])
    for (const [total, projects] of [
      [0, 1],
      [10_000, 1],
      [10_000, 20],
      [10_000, 1000],
    ]) {
      await fill(bench, queue, total, projects)
      await queues.db.executeSql('vacuum analyze pgboss.job_common')
      for (const limit of [1, 10]) {
        const times: number[] = []
        for (let i = 0; i < CLAIMS; i++) times.push(await claimOnce(queues, queue, limit))
        times.sort((a, b) => a - b)
        rows.push({
          what: `claim of ${limit}, ${queue.policy}, ${total} messages of ${projects} projects wait, p50`,
          value: Number(times[CLAIMS / 2].toFixed(2)),
          unit: 'ms',
        })
      }
    }
  return rows
}

async function claimOnce(queues: Queues, queue: Queue<Item>, limit: number): Promise<number> {
  let ms = 0
  const undo = new Error('undo')
  await queues
    .transaction(async tx => {
      const started = performance.now()
      await claimMessages(tx, queue, { limit, last: '', held: new Map(), share: 5, borrow: 9 })
      ms = performance.now() - started
      throw undo
    })
    .catch(error => {
      if (error !== undo) throw error
    })
  return ms
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(Number(process.argv[2] ?? 10_000)))
  process.exit(0)
}
