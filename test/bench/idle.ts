import type { ChildProcess } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { startDouble } from '#local/double/server.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { startCountingProxy } from './counting-proxy.ts'
import { start } from './http.ts'
import { processorTime } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * The cost of a web and a worker process without requests: statements, counted on the wire, and processor
 * time. Usage: node test/bench/idle.ts [seconds, default 60]
 */
const SHOWN = 8
/** Remaining writes of the traffic complete meanwhile: traces, seals, deliveries. */
const SETTLE_SECONDS = 15

export async function run(seconds = 60): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const proxy = await startCountingProxy(app.databaseUrl)
  const env = testEnvironment(proxy.url)
  const processes: ChildProcess[] = []
  try {
    const web = await start('src/web.ts', env)
    processes.push(web.child)
    const worker = await start('jobs/worker.ts', env)
    processes.push(worker.child)
    for (const { stdout } of processes) stdout?.resume()
    const key = client(web.url, app.key.token)
    for (let n = 0; n < 20; n++) {
      const { status } = await key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      if (status !== 200) throw new Error(`a turn answered ${status}`)
    }
    await sleep(SETTLE_SECONDS * 1000)

    const times = () => processes.map(({ pid }) => processorTime(pid as number))
    proxy.take()
    const before = times()
    await sleep(seconds * 1000)
    const after = times()
    const statements = proxy.take()
    const perSecond = (count: number) => Number((count / seconds).toFixed(2))
    const shares = after.map((ms, n) => (ms - before[n]) / (seconds * 10))
    const often = statements
      .slice(0, SHOWN)
      .map(({ statement, count }) => `${perSecond(count)} ${statement.slice(0, 40)}`)
      .join('; ')
    return [
      {
        what: 'statements a second of an idle web and worker',
        value: perSecond(statements.reduce((sum, { count }) => sum + count, 0)),
        unit: '1/s',
        target: '<= 4',
        note: often,
      },
      {
        what: 'processor time of both, idle',
        value: Number(shares.reduce((sum, share) => sum + share, 0).toFixed(2)),
        unit: '% of a core',
        target: '<= 0.3',
        note: `web ${shares[0].toFixed(2)}, worker ${shares[1].toFixed(2)}`,
      },
    ]
  } finally {
    for (const child of processes) child.kill('SIGKILL')
    proxy.close()
    await double.close()
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
