import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { startApp, type TestApp, type TestProject } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { CHILD_NAMES, childOf } from './support/children.ts'
import { CROWD_ACTIONS, cast, ended, orchestration, sideEffects, start, together } from './support/crowd.ts'
import { type Mode, type RandomGraph, type References, randomGraph } from './support/graphs.ts'
import { disagreements, interpret, type World } from './support/interpreter.ts'
import { randomOf } from './support/random.ts'
import { startToolDouble, type ToolDouble } from './support/tool-double.ts'

/** Graphs without faults, graphs with killed workers, and the first seed. */
const UNDISTURBED = rounds('RANDOM_GRAPHS', 40, 1800)
const DISTURBED = rounds('RANDOM_GRAPHS_KILLED', 8, 200)
/** Workers killed at most: on a busy machine the runs take longer. */
const KILLS = Math.ceil(DISTURBED / 3)
const SEED = Number(process.env.RANDOM_GRAPHS_SEED ?? 1)
/** Seeds of a rare case that runs every time: the write of a node fails alongside nodes activated with it. */
const RARE = [1132, 1740, 1758]

/** Concurrent runs. */
const AT_ONCE = 24
/** Failures after which the test stops. */
const ENOUGH = 5

const WORKER = { SHUTDOWN_GRACE_MS: '2000', EGRESS_ALLOW_HOSTS: '127.0.0.1' }

/** Short leases, so that a lost worker is detected within seconds, and a delivery limit above the number of kills. */
const KILLED = {
  ...WORKER,
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
  ORCHESTRATION_NODE_MAX_DELIVERIES: '100',
}

const modeOf = (seed: number): Mode => (seed % 2 === 0 ? 'lockstep' : 'free')

describe('reference model of graphs with waiting nodes', () => {
  it('predicts outcomes that do not depend on the order in which nodes resume', () => {
    const references: References = { tool: 'tool_1', child: name => name }
    const definitions = CHILD_NAMES.map(name => [name, childOf(name, references).definition] as const)
    const world: World = { definition: id => new Map<string, any>(definitions).get(id) }
    for (let seed = SEED; seed < SEED + 300; seed++) {
      const { definition, input } = randomGraph(seed, 'free', references)
      const random = randomOf(seed)
      const inRounds = interpret(definition, input, world, { beyond: true })
      const asItComes = interpret(definition, input, world, {
        beyond: true,
        next: nodes => random.shuffled(nodes).slice(0, random.between(1, nodes.length)),
      })
      const outcomes = ({ steps }: typeof inRounds) =>
        definition.nodes.map(({ id }) => ({ ...steps.get(id), id, round: undefined }))
      assert.deepEqual(outcomes(asItComes), outcomes(inRounds), `seed ${seed}`)
      assert.equal(asItComes.status, inRounds.status)
      if (inRounds.status === 'succeeded') assert.deepEqual(asItComes.state, inRounds.state, `seed ${seed}`)
    }
  })
})

describe('random graphs', function () {
  this.timeout(1_800_000)
  let app: TestApp
  let project: TestProject
  let double: ToolDouble
  let references: References
  let world: World
  let workers: TestProcess[] = []
  const steady = steadyWorkers()

  const worker = async (env: Record<string, string>) => {
    const made = await startProcess('worker', app.databaseUrl, env, ['orchestration'])
    workers.push(made)
    return made
  }

  /** Runs a graph to its end. Returns its deviations with the data to reproduce them. */
  const tried = async (graph: RandomGraph): Promise<string[]> => {
    let run = 'no run'
    const outcome = async () => {
      const id = await orchestration(project.key, graph.definition, `seed ${graph.seed}`)
      run = (await start(project.key, id, graph.input)).id
      return disagreements(graph, graph.input, world, await ended(project.key, run))
    }
    const wrong = await outcome().catch((error: Error) => [error.message])
    if (wrong.length === 0) return []
    const faults = workers.flatMap(({ output }) => output.filter(line => /"level":[56]0/.test(line))).slice(-5)
    return [`seed ${graph.seed}, ${graph.mode}, ${run}:`, ...wrong, JSON.stringify(graph), ...faults]
  }

  const from = (first: number, count: number) => Array.from({ length: count }, (_, index) => first + index)

  const runAll = async (seeds: readonly number[]) => {
    const faults: string[][] = []
    await together(seeds, AT_ONCE, async seed => {
      if (faults.length >= ENOUGH) return
      const found = await tried(randomGraph(seed, modeOf(seed), references))
      if (found.length > 0) faults.push(found)
    })
    assert.equal(faults.length, 0, faults.map(lines => lines.join('\n')).join('\n\n'))
  }

  beforeEach(async () => {
    app = await startApp({ env: WORKER })
    project = await app.projectWith(CROWD_ACTIONS)
    double = await startToolDouble()
    const made = await cast(project.key, double)
    references = made.references
    world = made.world
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(workers.map(({ kill }) => kill()))
    workers = []
    await app?.close()
    await double?.close()
  })

  it('match the reference model with two workers', async () => {
    await Promise.all([1, 2].map(() => steady.start(app.databaseUrl, WORKER, ['orchestration'])))
    await runAll([...new Set([...RARE, ...from(SEED, UNDISTURBED)])])
    assert.deepEqual(await sideEffects(project.key, double, { exactly: true }), [])
  })

  it('match the reference model when workers are killed', async () => {
    const random = randomOf(SEED)
    await Promise.all([worker(KILLED), worker(KILLED)])
    let over = false
    const killing = (async () => {
      for (let kills = 0; kills < KILLS; kills++) {
        await sleep(random.between(100, 900))
        if (over) return
        const [victim] = workers.splice(random.between(0, workers.length - 1), 1)
        await Promise.all([victim.kill(), worker(KILLED)])
      }
    })()
    try {
      await runAll(from(SEED + 1_000_000, DISTURBED))
    } finally {
      over = true
      await killing
    }
    assert.deepEqual(await sideEffects(project.key, double), [])
  })
})
