import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { testEnvironment } from '../support/environment.ts'
import { startCollectorProcess } from './collector.ts'
import { amount, progress } from './fast.ts'
import { exactTime, median, medianInterval, percentile, postmaster, rounded, walBytes } from './measure.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'
import { counted, type Target } from './turn-load.ts'

/**
 * Waited turns without telemetry and with it, in turns: deployments of a web process, a worker and a database each, on one
 * server, each of which has the same number of turns in each round. A cost is the median of the differences of rounds, with
 * its interval. A second deployment without telemetry shows the difference that is none.
 */
const ROUNDS = amount(300, 80)
/** Few, so that the load of the machine is the same for the deployments of a round. */
const TURNS = 48
const WARM_UP = amount(1500, 400)

const RATIOS = { off: null, control: null, '0.1': '0.1', '1.0': '1' } as const

type Mode = keyof typeof RATIOS

const MODES = Object.keys(RATIOS) as Mode[]

/** Most that telemetry may add to processor time and to p99, in percent. */
const BUDGETS = { '0.1': { processor: 0.5, p99: 1 }, '1.0': { processor: 1, p99: 1 } }

type Measured = { processor: number; p99: number; wal: number }

async function deploy(mode: Mode, collector: string) {
  const app: AgentApp = await startAgentApp({ workers: [] })
  const ratio = RATIOS[mode]
  const env = {
    ...testEnvironment(app.databaseUrl),
    WORKER_CONCURRENCY: '32',
    ...(ratio && { OTEL_EXPORTER_OTLP_ENDPOINT: collector, OTEL_TRACES_SAMPLER_ARG: ratio }),
  }
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  for (const { child } of [web, worker]) child.stdout?.resume()
  const target: Target = {
    url: web.url,
    path: `/api/v1/agents/${app.agentId}/generate`,
    token: app.key.token as string,
    body: { prompt: 'hello' },
  }
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const pids = [web, worker].map(({ child }) => child.pid as number)
  const server = await postmaster(db)
  const used = () => pids.reduce((sum, pid) => sum + exactTime(pid), 0) + exactTime(server, { children: true })
  return {
    warmUp: () => counted(target, WARM_UP),
    async round(): Promise<Measured> {
      const [before, wal] = [used(), await walBytes(db)]
      const latencies = await counted(target, TURNS)
      const processor = (used() - before) / TURNS
      return { processor, p99: percentile(latencies, 0.99), wal: ((await walBytes(db)) - wal) / TURNS / 1024 }
    },
    async close() {
      for (const { child } of [web, worker]) child.kill('SIGKILL')
      await db.end()
      await app.close()
    },
  }
}

export async function turnRows(spanCosts: { unsampled: number; sampled: number }): Promise<Row[]> {
  const collector = await startCollectorProcess()
  const deployments = new Map<Mode, Awaited<ReturnType<typeof deploy>>>()
  const measured: Record<Mode, Measured[]> = { off: [], control: [], '0.1': [], '1.0': [] }
  try {
    for (const mode of MODES) {
      progress(`telemetry ${mode}: start and ${WARM_UP} turns`)
      const deployment = await deploy(mode, collector.url)
      deployments.set(mode, deployment)
      await deployment.warmUp()
    }
    for (let n = 0; n < ROUNDS; n++) {
      for (const mode of n % 2 === 0 ? MODES : MODES.toReversed())
        measured[mode].push(await (deployments.get(mode) as Awaited<ReturnType<typeof deploy>>).round())
      const last = MODES.map(mode => `${mode} ${rounded(measured[mode][n].processor, 2)}`)
      if (n % 10 === 0) progress(`round ${n + 1} of ${ROUNDS}, ms of processor time of a turn: ${last.join(', ')}`)
    }
    return [...MODES.slice(1).flatMap(mode => differenceRows(mode, measured)), ...(await spansRow())]
  } finally {
    for (const deployment of deployments.values()) await deployment.close()
    collector.close()
  }

  /** What the spans of a turn cost by their number. */
  async function spansRow(): Promise<Row[]> {
    const turn = await spansOfTurn()
    const processor = median(measured.off.map(each => each.processor))
    const { unsampled, sampled } = spanCosts
    const costs = { '0.1': 0.9 * unsampled + 0.1 * sampled, '1.0': sampled }
    return Object.entries(costs).map(([mode, us]) => ({
      what: `telemetry ${mode}: time of the spans of a turn, of its processor time`,
      value: rounded((turn * us) / 10 / processor, 2),
      unit: '%',
      target: `<= ${BUDGETS[mode as '0.1'].processor}`,
      note: `${rounded(turn)} spans of ${rounded(us, 2)} us; a turn without telemetry takes ${rounded(processor, 2)} ms`,
    }))
  }

  async function spansOfTurn(): Promise<number> {
    // Longer than the delay of a batch.
    await sleep(6000)
    const before = await collector.spans()
    await (deployments.get('1.0') as Awaited<ReturnType<typeof deploy>>).round()
    await sleep(6000)
    return ((await collector.spans()) - before) / TURNS
  }
}

function differenceRows(mode: Mode, measured: Record<Mode, Measured[]>): Row[] {
  const row = (what: string, of: (measured: Measured) => number, unit: string, budget?: number): Row => {
    const base = median(measured.off.map(of))
    const differences = measured[mode].map((each, index) => (100 * (of(each) - of(measured.off[index]))) / base)
    const [low, high] = medianInterval(differences)
    return {
      what: `telemetry ${mode === 'control' ? 'off again' : mode}: ${what}, more than off`,
      value: rounded(median(differences), 2),
      unit: '%',
      ...(budget !== undefined && { target: `<= ${budget}` }),
      note: `95 % interval ${rounded(low, 2)} to ${rounded(high, 2)}; off ${rounded(base, 2)} ${unit}`,
    }
  }
  const budget = mode === '0.1' || mode === '1.0' ? BUDGETS[mode] : undefined
  return [
    row('processor time of a turn', each => each.processor, 'ms', budget?.processor),
    row('p99', each => each.p99, 'ms', budget?.p99),
    row('WAL of a turn', each => each.wal, 'KiB'),
  ]
}
