import { setTimeout as sleep } from 'node:timers/promises'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { median, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * A run of an eval next to as many turns in the background: one web and one worker process, a model that answers immediately.
 * Part of `npm run bench work`.
 */
const ITEMS = Number(process.env.BENCH_EVAL_ITEMS ?? 1000)
const WARM_UP = 50
const CALLERS = 16

async function made(app: AgentApp, path: string, body: object): Promise<any> {
  const reply = await app.key.post(path, body)
  if (reply.status >= 300) throw new Error(`${path} answered ${reply.status}: ${JSON.stringify(reply.body)}`)
  return reply.body
}

/** Seconds until a number of concurrently requested turns of an agent have completed. */
async function turns(app: AgentApp, agent: string, count: number): Promise<number> {
  const started = performance.now()
  const before = (await app.key.get(`/generations?agent_id=${agent}&status=completed&limit=1`)).body.total
  const slots = new FairSemaphore(CALLERS)
  await Promise.all(
    Array.from({ length: count }, (_, at) =>
      slots
        .acquire('', 1)
        .then(release => made(app, `/agents/${agent}/generate?wait=false`, { prompt: `q${at}` }).finally(release)),
    ),
  )
  for (;;) {
    const { total } = (await app.key.get(`/generations?agent_id=${agent}&status=completed&limit=1`)).body
    if (total - before >= count) return (performance.now() - started) / 1000
    await sleep(25)
  }
}

/** Seconds until a run of an eval has completed. */
async function evaluation(app: AgentApp, evalId: string): Promise<number> {
  const started = performance.now()
  const run = await made(app, `/evals/${evalId}/runs`, {})
  for (;;) {
    const { status, errored_count } = (await app.key.get(`/evals/${evalId}/runs/${run.id}`)).body
    if (errored_count > 0) throw new Error(`${errored_count} items ended with an error`)
    if (status === 'completed') return (performance.now() - started) / 1000
    await sleep(25)
  }
}

async function evalOf(app: AgentApp, agent_id: string, count: number): Promise<string> {
  const { id: dataset_id } = await made(app, '/datasets', { name: `${count} items` })
  const items = Array.from({ length: count }, (_, at) => ({
    input: [{ role: 'user', content: `q${at}` }],
    expected_output: 'Yes',
  }))
  for (let from = 0; from < count; from += 500)
    await made(app, `/datasets/${dataset_id}/items/import`, { items: items.slice(from, from + 500) })
  const scorers = [{ type: 'exact_match' }]
  return (await made(app, '/evals', { name: `${count} items`, agent_id, dataset_id, scorers })).id
}

/** Rows of the suite: with the default concurrency of a worker, and with as many as there are callers. */
export async function run(): Promise<Row[]> {
  const rows: Row[] = []
  for (const batch of [5, CALLERS + 1]) rows.push(...(await compare(batch)))
  return rows
}

async function compare(batch: number): Promise<Row[]> {
  const app = await startAgentApp({
    workers: ['generation', 'evaluation'],
    env: { EVAL_WORKER_BATCH: String(batch) },
  })
  try {
    await client(app.double).put('eval-bench', { rules: [{ reply: { text: 'Yes' } }] })
    const agent = await app.agent({ model: 'eval-bench/m' })
    const evalId = await evalOf(app, agent, ITEMS)
    await turns(app, agent, WARM_UP)
    await evaluation(app, await evalOf(app, agent, WARM_UP))
    const took = { turns: [] as number[], evals: [] as number[] }
    // In turn, because what else the machine does changes.
    for (let round = 0; round < 3; round++) {
      took.turns.push(await turns(app, agent, ITEMS))
      took.evals.push(await evaluation(app, evalId))
    }
    const rate = { turns: ITEMS / median(took.turns), evals: ITEMS / median(took.evals) }
    return [
      {
        what: `items of an eval, exact_match, EVAL_WORKER_BATCH ${batch}, of turns in the background`,
        value: Math.round((rate.evals / rate.turns) * 100) / 100,
        unit: 'x',
        target: '>= 0.8',
        note: `${ITEMS} items: ${rounded(rate.evals)}/s against ${rounded(rate.turns)}/s`,
      },
    ]
  } finally {
    await app.close()
  }
}
