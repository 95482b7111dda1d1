import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import autocannon from 'autocannon'
import { startDouble } from '../../src/local/double/server.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { openStream } from '../execution/streams.ts'
import { client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { countStatements, memory, start } from './http.ts'
import type { Row } from './rows.ts'

/**
 * Waited and streamed turns with web and worker in two processes and a double that answers at once.
 * Usage: node test/bench/turns.ts [seconds, default 8]
 */
const CALLERS = 16

const percentile = (times: number[], share: number) =>
  Number([...times].sort((a, b) => a - b)[Math.floor(times.length * share)].toFixed(1))

export async function run(seconds = 8): Promise<Row[]> {
  const app = await startAgentApp()
  const rows: Row[] = []
  const trips = await roundTrips(app)
  await app.close()

  const idle = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const env = {
    ...testEnvironment(idle.databaseUrl),
    LOG_LEVEL: 'info',
    WORKER_CONCURRENCY: '32',
    DATABASE_POOL_MAX: '20',
  }
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  web.child.stdout?.resume()
  worker.child.stdout?.resume()
  const key = client(web.url, idle.key.token)
  const ask = async () => {
    const started = performance.now()
    const { status } = await key.post(`/agents/${idle.agentId}/generate?wait=true`, { prompt: 'hello' })
    if (status !== 200) throw new Error(`a turn answered ${status}`)
    return performance.now() - started
  }
  try {
    for (let n = 0; n < 100; n++) await ask()
    const alone: number[] = []
    for (let n = 0; n < 300; n++) alone.push(await ask())
    rows.push({
      what: 'waited turn, one caller, p50',
      value: percentile(alone, 0.5),
      unit: 'ms',
      target: '< 15',
      note: `p90 ${percentile(alone, 0.9)} ms; ${trips} round trips in all (target 12)`,
    })

    const load = await autocannon({
      url: `${web.url}/api/v1/agents/${idle.agentId}/generate?wait=true`,
      method: 'POST',
      headers: { authorization: `Bearer ${idle.key.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: 'hello' }),
      connections: CALLERS,
      duration: seconds,
    })
    if (Object.keys(load.statusCodeStats).join() !== '200')
      throw new Error(`turns answered ${JSON.stringify(load.statusCodeStats)}`)
    rows.push({
      what: `waited turns, ${CALLERS} callers`,
      value: Math.round(load.requests.average),
      unit: '1/s',
      target: '>= 250',
      note: `p50 ${load.latency.p50} ms, p99 ${load.latency.p99} ms`,
    })

    const first: number[] = []
    for (let n = 0; n < 50; n++) {
      const started = performance.now()
      const stream = await openStream({ url: web.url, key }, `/agents/${idle.agentId}/generate`, {
        prompt: 'one two three',
        stream: true,
      })
      for await (const message of stream.messages) {
        if (message.event === 'delta') {
          first.push(performance.now() - started)
          break
        }
      }
      stream.close()
      await sleep(20)
    }
    // The double's first token is there as soon as it is asked, so the whole way from the request counts here.
    rows.push({
      what: 'request to first delta, p50',
      value: percentile(first, 0.5),
      unit: 'ms',
      target: '< 40',
      note: `p90 ${percentile(first, 0.9)} ms`,
    })
    rows.push({ what: 'memory of web under turns', value: await memory(web.child), unit: 'MiB', target: '< 200' })
    rows.push({ what: 'memory of worker under turns', value: await memory(worker.child), unit: 'MiB', target: '< 200' })
  } finally {
    web.child.kill('SIGKILL')
    worker.child.kill('SIGKILL')
    await double.close()
    await idle.close()
  }
  return rows
}

/** Statements of one waited turn, web and worker together. The worker's idle polls are left out by counting while it is woken. */
async function roundTrips(app: Awaited<ReturnType<typeof startAgentApp>>): Promise<number> {
  const ask = () => app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
  for (let n = 0; n < 5; n++) await ask()
  const counts: number[] = []
  for (let n = 0; n < 9; n++) {
    await sleep(137)
    const count = countStatements()
    await ask()
    await sleep(15)
    count.stop()
    counts.push(count.value)
  }
  return counts.sort((a, b) => a - b)[4]
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
