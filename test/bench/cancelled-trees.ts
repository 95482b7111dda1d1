import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { sql } from '#core/db/sql.ts'
import { copyTree } from '../automation/support/copies.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { amount } from './fast.ts'
import { start } from './http.ts'
import { percentile, processorTime, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * The cancellation of a large tree of runs, and how long a run of another project takes meanwhile. The floor is what the
 * database takes for the least that a cancellation writes, page by page.
 */
const DESCENDANTS = amount(20_000, 2000)
const FLOOR_DESCENDANTS = amount(4000, 500)
const PAGE = 500
const PROBES = 10
const PAUSE_MS = 100

type Key = AgentApp['key']

async function made(key: Key, path: string, body: object): Promise<any> {
  const answer = await key.post(path, body)
  if (answer.status !== 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body
}

const graph = async (key: Key, node: object): Promise<string> =>
  (await made(key, '/orchestrations', { name: 'graph', nodes: [node], edges: [] })).id

const loop = (orchestration_id: string) => ({
  id: 'each',
  type: 'loop',
  orchestration_id,
  collection: 'input.items',
  input_mapping: { items: [1] },
})

/** Returns the rate at which the database cancels the runs of a tree, their attempts and writes an event of each. */
async function measureFloor({ services: { pool } }: AgentApp, root: string): Promise<number> {
  const started = performance.now()
  let runs = 0
  for (;;) {
    const cancelled = (await pool.anyFirst(sql.unsafe`
      with runs as (
        update orchestration_runs set status = 'cancelled', revision = revision + 1, completed_at = now(), updated_at = now()
        where id = any(array(
          select id from orchestration_runs where root_id = ${root} and id <> ${root} and status = 'awaiting_input' limit ${PAGE}))
        returning *
      ), attempts as (
        update orchestration_node_executions set status = 'cancelled', applied = true where run_id in (select id from runs)
      ), made as (
        insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
        select 'evt_' || id, project_id, 'orchestration_runs.cancelled', 'orchestration_run', id, to_json(runs)::text, now(), now()
        from runs
      )
      select id from runs`)) as readonly string[]
    runs += cancelled.length
    if (cancelled.length < PAGE) return (runs / (performance.now() - started)) * 1000
  }
}

export async function run(): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const quiet = await app.project()
  const { pool } = app.services
  const settings = { ...testEnvironment(app.databaseUrl), EGRESS_ALLOW_HOSTS: '127.0.0.1' }
  const worker = await start('jobs/worker.ts', settings, ['orchestration'])
  worker.child.stdout?.resume()
  try {
    const leaf = await graph(app.key, { id: 'ask', type: 'human' })
    const middle = await graph(app.key, loop(leaf))
    const analyze = sql.unsafe`analyze orchestration_runs, orchestration_node_executions`
    const tree = async (copies: number): Promise<string> => {
      const { id } = await made(app.key, '/orchestration-runs', {
        orchestration_id: await graph(app.key, loop(middle)),
        input: { items: [1] },
      })
      const parent = await eventually(() =>
        pool.maybeOneFirst(sql.unsafe`
          select parent_id from orchestration_runs where root_id = ${id} and status = 'awaiting_input' and run_depth = 2`),
      )
      await sleep(amount(2000, 500))
      await pool.query(analyze)
      await copyTree(pool, parent as string, copies / 2)
      await pool.query(analyze)
      return id
    }
    const floorTree = await tree(FLOOR_DESCENDANTS)
    const id = await tree(DESCENDANTS)
    const probe = await graph(quiet.key, { id: 'set', type: 'transform', expression: 1 })
    const probed = async (): Promise<number> => {
      const started = performance.now()
      await made(quiet.key, '/orchestration-runs', { orchestration_id: probe, wait: true })
      return performance.now() - started
    }
    const floor = await measureFloor(app, floorTree)
    const before: number[] = []
    for (let n = 0; n < PROBES; n++) before.push(await probed())
    const live = () =>
      pool.oneFirst(sql.unsafe`
        select count(*)::int from orchestration_runs
        where root_id = ${id} and status in ('queued', 'running', 'sleeping', 'awaiting_input')`) as Promise<number>
    const used = processorTime(worker.child.pid as number)
    const started = performance.now()
    const answer = await app.key.post(`/orchestration-runs/${id}/cancel`)
    if (answer.status !== 200) throw new Error(JSON.stringify(answer.body))
    const meanwhile: number[] = []
    let remaining = await live()
    while (remaining > 0) {
      meanwhile.push(await probed())
      await sleep(PAUSE_MS)
      remaining = await live()
    }
    const seconds = (performance.now() - started) / 1000
    const worked = processorTime(worker.child.pid as number) - used
    const what = `cancellation of a run with ${DESCENDANTS} descendants`
    return [
      {
        what: `${what}: runs`,
        value: rounded(DESCENDANTS / seconds, 0),
        unit: '/s',
        target: '>= 2000',
        note: `${rounded(worked / 1000)} s of processor time of the worker`,
      },
      {
        what: `${what}: rate of the floor, the writes of the database alone`,
        value: rounded(floor, 0),
        unit: '/s',
        note: `ratio ${rounded(DESCENDANTS / seconds / floor)}`,
      },
      {
        what: `${what}: a run of another project meanwhile, p95`,
        value: rounded(percentile(meanwhile, 0.95)),
        unit: 'ms',
        note: `${rounded(percentile(before, 0.95))} ms before, ${meanwhile.length} runs meanwhile`,
      },
    ]
  } finally {
    worker.child.kill('SIGKILL')
    await app.close()
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) console.table(await run())
