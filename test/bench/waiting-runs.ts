import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import {
  listDueRuns,
  listExpiredNodes,
  listStaleQueuedRuns,
  listStaleRunningRuns,
  listStaleWaitingRuns,
  listUnclaimedNodes,
} from '#automation/orchestrations/runs/engine/sweep-store.ts'
import { runQueue } from '#automation/orchestrations/runs/queue.ts'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { startDouble } from '#local/double/server.ts'
import { copyRun } from '../automation/support/copies.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { resident } from '../support/processes.ts'
import { amount } from './fast.ts'
import { start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Runs that wait: the cost of waiting for people and timers, and how long another project waits next to runs that wait
 * for a worker or for capacity.
 */
const PARKED = amount(10_000, 1000)
const QUEUED = amount(5_000, 200)
const SWEEPS = 9
const ASKED = amount(20, 5)
/** Sweeps of the worker, one a second. */
const WORKER_SWEEPS = amount(15, 2)
const MIB = 2 ** 20

type Key = AgentApp['key']

async function made(key: Key, path: string, body: object): Promise<any> {
  const answer = await key.post(path, body)
  if (answer.status !== 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body
}

/** A run once it is in a status. */
const once = (key: Key, id: string, status: string) =>
  eventually(async () => (await key.get(`/orchestration-runs/${id}`)).body.status === status, {
    what: `${id} ${status}`,
  })

const worker = async (app: AgentApp, env: Record<string, string> = {}) => {
  const settings = { ...testEnvironment(app.databaseUrl), EGRESS_ALLOW_HOSTS: '127.0.0.1', ...env }
  const made = await start('jobs/worker.ts', settings, ['orchestration'])
  made.child.stdout?.resume()
  return made.child
}

export async function run(): Promise<Row[]> {
  return [...(await parked()), ...(await beside('a worker', null)), ...(await beside('room', 1))]
}

/** Runs that wait for people and timers. */
async function parked(): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const { pool } = app.services
  // As often as this, so that a minute of sweeps takes ten seconds.
  const { pid, kill } = await worker(app, { ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000' }).then(child => ({
    pid: child.pid as number,
    kill: () => child.kill('SIGKILL'),
  }))
  try {
    const nodes = { human: { id: 'ask', type: 'human' }, delay: { id: 'sleep', type: 'delay', duration: '20h' } }
    for (const [name, node] of Object.entries(nodes)) {
      const { id: orchestration_id } = await made(app.key, '/orchestrations', { name, nodes: [node], edges: [] })
      const { id } = await made(app.key, '/orchestration-runs', { orchestration_id })
      await once(app.key, id, name === 'human' ? 'awaiting_input' : 'sleeping')
      if (name === 'human') await sleep(amount(5000, 1000))
      await copyRun(pool, id, PARKED / 2)
    }
    await pool.query(sql.unsafe`update orchestration_runs set updated_at = now() - interval '1 hour'`)
    await pool.query(sql.unsafe`analyze orchestration_runs, orchestration_node_executions`)
    const before = await resident(pid)
    const sent = () =>
      pool.oneFirst(sql.unsafe`
        select count(*)::int from pgboss.job_common where name ~ '^(run|node)[.]' and name not like '%sweep%'`) as Promise<number>
    const messages = await sent()
    const times: Record<string, number[]> = {}
    const sweeps: Record<string, () => Promise<unknown>> = {
      due: () => listDueRuns(pool, 5, 1000),
      lost: () => listExpiredNodes(pool, 1000),
      untaken: () => listUnclaimedNodes(pool, 5, 1000),
      queued: () => listStaleQueuedRuns(pool, 5, 1000),
      behind: () => listStaleRunningRuns(pool, 5, 1000),
      // One of five pages: each is a separate statement.
      'a page of those that wait': () => listStaleWaitingRuns(pool, { quietSeconds: 5, after: '', limit: 2000 }),
    }
    for (let n = 0; n < SWEEPS; n++)
      for (const [name, sweep] of Object.entries(sweeps)) {
        const started = performance.now()
        await sweep()
        times[name] = [...(times[name] ?? []), performance.now() - started]
      }
    await sleep(WORKER_SWEEPS * 1000)
    const after = await resident(pid)
    const medians = Object.entries(times).map(([name, all]) => [name, percentile(all, 0.5)] as const)
    const what = `${PARKED} runs that wait for people and timers`
    return [
      { what: `${what}: messages while they wait`, value: (await sent()) - messages, unit: '', target: '<= 0' },
      {
        what: `${what}: one sweep, p50`,
        value: rounded(medians.reduce((sum, [, ms]) => sum + ms, 0)),
        unit: 'ms',
        target: '<= 50',
        note: medians.map(([name, ms]) => `${name} ${rounded(ms)}`).join(', '),
      },
      {
        what: `${what}: memory of the worker, after of before ${WORKER_SWEEPS} sweeps`,
        value: rounded(after.now / before.now, 2),
        unit: 'x',
        target: '<= 1.2',
        note: `${Math.round(before.now / MIB)} MiB before, ${Math.round(after.now / MIB)} MiB after, ${Math.round(after.most / MIB)} at most`,
      },
    ]
  } finally {
    kill()
    await app.close()
  }
}

/** A run of one project next to runs of another that wait for a worker, or for capacity. */
async function beside(waitsFor: string, max_concurrent_runs: number | null): Promise<Row[]> {
  const double = await startDouble({})
  const app = await startAgentApp({ workers: [] })
  const quiet = await app.project()
  const { pool, queues } = app.services
  const children: { kill(signal: NodeJS.Signals): unknown }[] = []
  try {
    const graphOf = async (key: Key) => {
      const { id: tool_id } = await made(key, '/tools', {
        name: 'probe',
        type: 'http',
        execute: { method: 'GET', url: `${double.url}/healthz` },
      })
      const nodes = [
        { id: 'set', type: 'transform', expression: 1 },
        { id: 'call', type: 'tool', tool_id },
      ]
      const body = { name: 'probe', nodes, edges: [{ from: 'set', to: 'call' }] }
      return (await made(key, '/orchestrations', body)).id
    }
    const [noisy, own] = [await graphOf(app.key), await graphOf(quiet.key)]
    const asked = async (): Promise<number> => {
      const started = performance.now()
      const { id, status } = await made(quiet.key, '/orchestration-runs', { orchestration_id: own, wait: true })
      if (status !== 'succeeded') throw new Error(`${id} is ${status}`)
      return performance.now() - started
    }
    if (max_concurrent_runs !== null) {
      const limited = await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs })
      if (limited.status !== 200) throw new Error(JSON.stringify(limited.body))
    }
    children.push(await worker(app))
    const alone: number[] = []
    for (let n = 0; n < ASKED; n++) alone.push(await asked())
    children[0].kill('SIGSTOP')
    const { id } = await made(app.key, '/orchestration-runs', { orchestration_id: noisy })
    const copies = await copyRun(pool, id, QUEUED - 1)
    for (let at = 0; at < copies.length; at += 500)
      await queues.send(
        copies.slice(at, at + 500).map(run_id => queueMessage(runQueue, { run_id, project_id: app.projectId })),
      )
    const left = () =>
      pool.oneFirst(sql.unsafe`
        select count(*)::int from orchestration_runs where project_id = ${app.projectId} and completed_at is null`) as Promise<number>
    children[0].kill('SIGCONT')
    const times: number[] = []
    for (let n = 0; n < ASKED; n++) {
      times.push(await asked())
      await sleep(100)
    }
    const rest = await left()
    await pool.query(
      sql.unsafe`update orchestration_runs set updated_at = now() - interval '1 hour' where status = 'queued'`,
    )
    const sweeps: number[] = []
    for (let n = 0; n < SWEEPS; n++) {
      const started = performance.now()
      await listStaleQueuedRuns(pool, 5, 1000)
      sweeps.push(performance.now() - started)
    }
    return [
      {
        what: `a run next to ${QUEUED} of another project that wait for ${waitsFor}, longest of ${ASKED}`,
        value: Math.round(Math.max(...times)),
        unit: 'ms',
        target: '<= 1000',
        note: `p50 ${Math.round(percentile(times, 0.5))} ms; alone p50 ${Math.round(percentile(alone, 0.5))} ms; ${rest} were left; a sweep for them ${rounded(percentile(sweeps, 0.5))} ms`,
      },
    ]
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await app.close()
    await double.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
