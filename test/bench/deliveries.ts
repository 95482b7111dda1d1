import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { pathToFileURL } from 'node:url'
import { loadConfig } from '#config.ts'
import { deliveryTask } from '#control/webhooks/handlers.ts'
import { newWebhookSecret, sealedForWebhook } from '#control/webhooks/model.ts'
import { insertWebhook } from '#control/webhooks/store.ts'
import { newId } from '#core/base/ids.ts'
import { silentLog } from '#core/base/log.ts'
import { sql } from '#core/db/sql.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { testEnvironment } from '../support/environment.ts'
import { emitNamed } from '../support/events.ts'
import { cloneTemplate } from '../support/postgres.ts'
import type { Row } from './rows.ts'

/**
 * Deliveries a second of one worker process to a local receiver, from events that wait to be dispatched to the last
 * post; time from the commit of one event to its receipt when idle; database round trips a delivery.
 * Usage: node test/bench/deliveries.ts [deliveries, default 10000]
 */
type Report = { count: number; first: number; last: number }

const EVENTS_A_WRITE = 20
const IDLE_EVENTS = 200
const DEADLINE_MS = 120_000

export async function run(total = 10_000): Promise<Row[]> {
  const database = await cloneTemplate()
  const env = { ...testEnvironment(database.url), LOG_LEVEL: 'error' }
  const config = loadConfig(env)
  const services = await openServices(config, { log: silentLog(), role: 'web' })
  const receiver = fork(new URL('receiver.ts', import.meta.url), { stdio: 'inherit' })
  try {
    const [{ port }] = (await once(receiver, 'message')) as [{ port: number }]
    const url = `http://127.0.0.1:${port}/`
    const rows: Row[] = []
    for (const webhooks of [1, 20]) {
      const project = await newProject(services, webhooks, url)
      await emit(services, project, total / webhooks)
      receiver.send('reset')
      const worker = startWorker(env)
      const { count, first, last } = await received(receiver, total)
      await stop(worker)
      const to = webhooks === 1 ? 'one webhook' : `${webhooks} webhooks`
      const rate = Math.round((count * 1000) / (last - first))
      rows.push({ what: `deliveries to ${to}, one worker process`, value: rate, unit: '1/s', target: '>= 1000' })
      await dropProject(services, project)
    }
    rows.push(...(await latency(services, receiver, env, url)))
    rows.push(...(await roundTrips(services, receiver, env, url)))
    return rows
  } finally {
    receiver.disconnect()
    await services.close()
    await database.drop()
  }
}

/** One event at a time to an idle worker process. */
async function latency(
  services: OpenServices,
  receiver: ChildProcess,
  env: Record<string, string>,
  url: string,
): Promise<Row[]> {
  const project = await newProject(services, 1, url)
  const worker = startWorker(env)
  receiver.send('reset')
  receiver.send('each')
  const times: number[] = []
  for (let i = -20; i < IDLE_EVENTS; i++) {
    const receipt = once(receiver, 'message') as Promise<[{ at: number }]>
    await emit(services, project, 1)
    const committed = performance.timeOrigin + performance.now()
    const [{ at }] = await receipt
    // The first ones start the worker.
    if (i >= 0) times.push(at - committed)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  await stop(worker)
  await dropProject(services, project)
  times.sort((a, b) => a - b)
  const at = (share: number) => Number(times[Math.floor(times.length * share)].toFixed(1))
  return [
    { what: 'commit to receipt when idle, p50', value: at(0.5), unit: 'ms', target: '< 25' },
    { what: 'commit to receipt when idle, p99', value: at(0.99), unit: 'ms' },
  ]
}

/** Statements a delivery, with the worker in this process. A dispatch's begin and commit are not counted. */
async function roundTrips(
  services: OpenServices,
  receiver: ChildProcess,
  env: Record<string, string>,
  url: string,
): Promise<Row[]> {
  let trips = 0
  const counted = await openServices(loadConfig({ ...env, WEBHOOK_SWEEP_INTERVAL_MS: '600000' }), {
    log: silentLog(),
    role: 'worker',
    onRoundTrip: () => {
      trips += 1
    },
  })
  const rows: Row[] = []
  const running = deliveryTask.start(counted, () => {})
  for (const [what, project, events, of] of [
    ['statements a delivery when idle', await newProject(services, 1, url), 1, 1],
    ['statements a delivery under load', await newProject(services, 1, url), 2000, 2000],
    ['statements an event without a webhook', await newProject(services, 0, url), 1, 0],
  ] as const) {
    await new Promise(resolve => setTimeout(resolve, 500))
    receiver.send('reset')
    trips = 0
    await emit(services, project, events)
    await received(receiver, of)
    await new Promise(resolve => setTimeout(resolve, 500))
    rows.push({ what, value: Number((trips / events).toFixed(2)), unit: '' })
  }
  await running?.close()
  await counted.close()
  return rows
}

async function newProject(services: OpenServices, webhooks: number, url: string): Promise<string> {
  const id = newId('proj')
  await services.pool.query(sql.unsafe`insert into projects (id, name) values (${id}, 'bench')`)
  for (let i = 0; i < webhooks; i++) {
    const webhook = newId('wh')
    await insertWebhook(services.pool, {
      id: webhook,
      project_id: id,
      policy_id: null,
      name: 'bench',
      description: null,
      url,
      events: ['agents.*'],
      active: true,
      sealed_secret: services.secrets.seal(newWebhookSecret(), sealedForWebhook(webhook, id)),
      created_at: new Date().toISOString(),
    })
  }
  return id
}

const dropProject = (services: OpenServices, id: string) =>
  services.pool.query(sql.unsafe`delete from projects where id = ${id}`)

/** Commits events, some to a transaction, as requests do. */
async function emit(services: OpenServices, project: string, events: number): Promise<void> {
  for (let sent = 0; sent < events; sent += EVENTS_A_WRITE) {
    await services.write(async tx => {
      for (let i = sent; i < Math.min(events, sent + EVENTS_A_WRITE); i++)
        emitNamed(tx, 'agents.updated', project, agent(project, i))
    })
  }
}

const agent = (project_id: string, number: number) => ({
  id: newId('agent'),
  project_id,
  name: `agent ${number}`,
  instructions: 'Answer briefly and name your sources. '.repeat(10),
  tags: { team: 'support' },
})

const startWorker = (env: Record<string, string>): ChildProcess =>
  spawn(process.execPath, [new URL('../../jobs/worker.ts', import.meta.url).pathname, 'delivery'], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'inherit', 'inherit'],
  })

async function stop(worker: ChildProcess): Promise<void> {
  const ended = once(worker, 'exit')
  worker.kill('SIGTERM')
  await ended
}

/** What the receiver reports once it has `count`. */
async function received(receiver: ChildProcess, count: number): Promise<Report> {
  for (const deadline = Date.now() + DEADLINE_MS; Date.now() < deadline; ) {
    const answer = once(receiver, 'message') as Promise<[Report]>
    receiver.send('report')
    const [report] = await answer
    if (report.count >= count) return report
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  throw new Error(`the receiver did not get ${count} deliveries`)
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href)
  console.table(await run(Number(process.argv[2] ?? 10_000)))
