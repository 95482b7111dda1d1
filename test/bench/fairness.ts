import { pathToFileURL } from 'node:url'
import { startDouble } from '#local/double/server.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { type Received, startReceiver } from '../support/receiver.ts'
import { makeTenant, type Tenant, turnsStarted } from '../support/tenants.ts'
import { start } from './http.ts'
import type { Row } from './rows.ts'

/**
 * The time that a quiet project waits next to noisy ones, with one worker process of ten slots: from the request for a turn until
 * the model gets it, and from the write of an event until the receiver gets it. Every noisy project has a hundred turns
 * of a second, or 2,000 deliveries to receivers that take a second, before it.
 * Usage: node test/bench/fairness.ts [turns a noisy project, default 100]
 */
const SLOW_MS = 1000
const ASKED = 5
const WEBHOOKS = 50
const EVENTS = 40

export async function run(turns = 100): Promise<Row[]> {
  const rows: Row[] = []
  for (const noisy of [0, 2, 20]) {
    rows.push(row('turn', noisy, await besides(noisy, 'generation', tenant => waitForTurns(tenant, turns))))
    rows.push(row('delivery', noisy, await besides(noisy, 'delivery', waitForDeliveries)))
  }
  return rows
}

function row(of: string, noisy: number, waits: number[]): Row {
  const ms = waits.map(Math.round).sort((a, b) => a - b)
  const what = `wait of a quiet project for a ${of} beside ${noisy} noisy ones, p50`
  return { what, value: ms[ms.length >> 1], unit: 'ms', note: `longest ${ms.at(-1)} ms` }
}

type Scene = { quiet: Tenant; noisy: Tenant[]; model: string; work(): Promise<void> }

/** Runs a measurement in a separate deployment; `work` starts the worker. */
async function besides(
  count: number,
  concern: string,
  measure: (scene: Scene) => Promise<number[]>,
): Promise<number[]> {
  const model = await startDouble({})
  const app: TestApp = await startApp()
  const workers: { kill(signal: NodeJS.Signals): unknown }[] = []
  try {
    const tenant = (name: string) => makeTenant(app, app.url, model.url, name)
    const noisy = await Promise.all(Array.from({ length: count }, (_, n) => tenant(`noisy ${n}`)))
    const work = async () => {
      const { child } = await start('jobs/worker.ts', testEnvironment(app.databaseUrl), [concern])
      child.stdout?.resume()
      workers.push(child)
    }
    return await measure({ quiet: await tenant('quiet'), noisy, model: model.url, work })
  } finally {
    for (const worker of workers) worker.kill('SIGKILL')
    await app.close()
    await model.close()
  }
}

async function waitForTurns({ quiet, noisy, model, work }: Scene, turns: number): Promise<number[]> {
  await Promise.all(noisy.map(each => repeat(turns, () => each.ask(SLOW_MS))))
  await work()
  if (noisy.length > 0) await eventually(async () => (await turnsStarted(model)).length >= 20)
  const waits: number[] = []
  await repeat(ASKED, async () => {
    const asked = performance.now()
    await quiet.ask(0, true)
    waits.push(performance.now() - asked)
  })
  return waits
}

async function waitForDeliveries({ quiet, noisy, work }: Scene): Promise<number[]> {
  const slow = await startReceiver((_, response) => void setTimeout(() => response.end(), SLOW_MS))
  const prompt = await startReceiver()
  try {
    await quiet.subscribe(prompt.url)
    await Promise.all(
      noisy.map(async each => {
        await repeat(WEBHOOKS, () => each.subscribe(slow.url))
        await repeat(EVENTS, () => each.write())
      }),
    )
    await work()
    if (noisy.length > 0) await eventually(() => slow.requests.length >= 400)
    const waits: number[] = []
    await repeat(ASKED, async () => {
      const written = performance.now()
      const count = prompt.requests.length
      await quiet.write()
      const { at } = await eventually<Received | undefined>(() => prompt.requests[count], { within: 120_000 })
      waits.push(at - written)
    })
    return waits
  } finally {
    await slow.close()
    await prompt.close()
  }
}

async function repeat(times: number, work: () => Promise<unknown>): Promise<void> {
  for (let n = 0; n < times; n++) await work()
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
