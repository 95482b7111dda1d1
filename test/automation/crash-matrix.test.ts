import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import type { GraphDefinition } from '#automation/orchestrations/definition/model.ts'
import { migrate } from '#core/queues/migrate.ts'
import { startEmbedded } from '#local/postgres.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { quietPort } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { graph } from './support/children.ts'
import {
  cast,
  ended,
  everyRow,
  orchestration,
  patient,
  type Run,
  readRun,
  sideEffects,
  start,
  taken,
  together,
} from './support/crowd.ts'
import { everyType, inputsOf, strayings } from './support/every-type.ts'
import type { References } from './support/graphs.ts'
import { randomOf } from './support/random.ts'
import { startToolDouble, type ToolDouble } from './support/tool-double.ts'

/** Where a worker is killed: in the advance of a run, in the attempt of a node, and where a nested run begins. */
const POINTS = [
  'run_locked',
  'run_advanced',
  'run_committed',
  'node_taken',
  'node_called',
  'node_finished',
  'child_started',
] as const

/** Runs and killed workers of each point. */
const RUNS = rounds('CRASH_RUNS', 2, 200)
const KILLS = rounds('CRASH_KILLS', 1, 20)
const SEED = Number(process.env.CRASH_SEED ?? 1)

/** Runs that are driven concurrently. */
const AT_ONCE = 24

/** Short leases, so that a lost worker is missed within seconds, and as many deliveries as there may be kills. */
const FAST = {
  SHUTDOWN_GRACE_MS: '2000',
  EGRESS_ALLOW_HOSTS: '127.0.0.1,localhost',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
  ORCHESTRATION_NODE_MAX_DELIVERIES: '100',
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
}

describe('runs whose workers are lost', function () {
  this.timeout(1_800_000)
  let app: AgentApp
  let double: ToolDouble
  let references: References
  let workers: TestProcess[] = []

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['orchestration', 'generation'])
    workers.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['orchestration', 'generation'])
  const open = async (options: { databaseUrl?: string } = {}) => {
    double = await startToolDouble()
    app = await startAgentApp({ workers: [], env: FAST, ...options })
    references = (await cast(app.key, double)).references
  }
  /** The graph with every type of node, with a separate store. */
  const everything = async (): Promise<{ id: string; definition: GraphDefinition; store: string }> => {
    const store = taken(await app.key.post('/memory-stores', { name: 'words' }), 201).id
    const definition = everyType({ ...references, agent: app.agentId, store })
    return { id: await orchestration(app.key, definition, 'everything'), definition, store }
  }
  /** Each thing that the runs of a graph do once was done once. */
  const onceEach = async (runs: readonly Run[], store: string) => {
    const entries = await everyRow(app.key, `/memory-entries?memory_store_id=${store}`)
    assert.equal(entries.length, runs.length, 'memory entries')
    const tries = runs.flatMap(({ node_executions }) => node_executions)
    for (const [type, field, list] of [
      ['agent', 'generation_id', 'generations'],
      ['approval', 'approval_id', 'approvals'],
    ] as const) {
      const ids = tries.filter(({ node_type }) => node_type === type).map(execution => execution[field])
      const made = (await everyRow(app.key, `/${list}`)).map(({ id }) => id)
      assert.equal(new Set(ids).size, runs.length, list)
      for (const id of ids) assert.ok(made.includes(id), `${id} is not there`)
    }
  }

  afterEach(async () => {
    await steady.stop()
    await Promise.all(workers.map(({ kill }) => kill()))
    workers = []
    await app?.close()
    await double?.close()
  })

  for (const [index, point] of POINTS.entries()) {
    it(`at ${point} end as they must and do nothing twice`, async () => {
      await open()
      const { id, definition, store } = await everything()
      const random = randomOf(SEED * 100 + index)
      const inputs = inputsOf(RUNS, point.replace('_', ''))
      const ids = await together(inputs, AT_ONCE, async input => (await start(app.key, id, input)).id)
      let over = false
      const driving = together(ids, AT_ONCE, run => ended(app.admin, run, 600_000)).finally(() => {
        over = true
      })
      driving.catch(() => {})
      for (let kill = 0; kill < KILLS && !over; kill++) {
        // The first at the first of all, the others somewhere on the way.
        const hit = kill === 0 ? 1 : random.between(2, 8 + 4 * RUNS)
        const doomed = await worker({ FAULT_POINTS: `${point}=kill:${hit}` })
        const lost = await Promise.race([doomed.exited.then(() => true), driving.then(() => false)])
        if (kill === 0) assert.ok(lost, `${point} was never reached`)
      }
      await steadyWorker()
      const runs = await driving
      assert.deepEqual(
        runs.flatMap((run, at) => strayings(definition, inputs[at], run)),
        [],
      )
      assert.deepEqual(await sideEffects(app.key, double), [])
      await onceEach(runs, store)
    })
  }

  it('by a worker that was frozen past its lease are not changed when it thaws', async () => {
    await open()
    const act = (id: string, value: unknown) => ({
      id,
      type: 'tool',
      tool_id: references.tool,
      input_mapping: { value },
      state_mapping: { 'state.total': { '+': [{ var: ['state.total', 0] }, 1] } },
    })
    const definition = graph(
      [act('first', 1), act('second', { var: 'nodes.first.value' })],
      [{ from: 'first', to: 'second' }],
    )
    const id = await orchestration(app.key, definition)
    const held = new Set<string>()
    // The first call of each run is not answered before the end.
    double.hold = ({ key, node }) => node === 'first' && !held.has(key) && Boolean(held.add(key))
    const count = Math.max(4, Math.min(RUNS, 10))
    const ids = await together(inputsOf(count, 'frozen'), AT_ONCE, async input => (await start(app.key, id, input)).id)
    const frozen = await steadyWorker()
    await eventually(() => held.size === count, { what: 'a call of each run' })
    process.kill(frozen.pid, 'SIGSTOP')
    const second = await steadyWorker()
    const runs = await together(ids, AT_ONCE, run => ended(app.key, run))
    for (const run of runs) assert.deepEqual([run.status, run.state.total], ['succeeded', 2], JSON.stringify(run))
    double.release()
    process.kill(frozen.pid, 'SIGCONT')
    await second.stop()
    // It has nothing left to do with the old ones when a new one has gone all the way.
    double.hold = () => false
    const last = await ended(app.key, (await start(app.key, id, { n: 1 })).id)
    assert.equal(last.status, 'succeeded')
    assert.deepEqual(await together(ids, AT_ONCE, run => readRun(app.key, run)), runs)
    assert.deepEqual(await sideEffects(app.key, double, { late: true }), [])
    for (const run of ids) {
      const keys = double.calls.filter(call => call.run === run).map(({ key }) => key)
      assert.deepEqual(keys.sort(), [`${run}:first:1`, `${run}:first:1`, `${run}:second:1`])
    }
  })

  it('with their database end when it is back', async () => {
    const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-crash-'))
    fs.chmodSync(base, 0o755)
    const place = { dir: path.join(base, 'pg'), port: await quietPort() }
    let server = await startEmbedded(place)
    try {
      await migrate(server.url)
      await open({ databaseUrl: server.url })
      const { id, definition, store } = await everything()
      const [key, admin] = [patient(app.key), patient(app.admin)]
      await worker()
      await worker()
      const inputs = inputsOf(RUNS, 'restart')
      const ids = await together(inputs, AT_ONCE, async input => (await start(key, id, input)).id)
      const driving = together(ids, AT_ONCE, run => ended(admin, run, 600_000))
      driving.catch(() => {})
      for (let restart = 0; restart < 2; restart++) {
        const calls = double.calls.length
        await Promise.race([eventually(() => double.calls.length > calls + RUNS, { within: 600_000 }), driving])
        await server.stop()
        server = await startEmbedded(place)
      }
      const runs = await driving
      assert.deepEqual(
        runs.flatMap((run, at) => strayings(definition, inputs[at], run)),
        [],
      )
      assert.deepEqual(await sideEffects(key, double), [])
      await onceEach(runs, store)
    } finally {
      await server.stop()
      fs.rmSync(base, { recursive: true, force: true })
    }
  })
})
