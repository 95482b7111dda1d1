import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { priceUsage } from '#control/usage/price-usage.ts'
import { usageInsert } from '#control/usage/store.ts'
import { type Fragment, rawQuery, sql, voidStatement } from '#core/db/sql.ts'
import { useOf } from '../control/usage-support.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { testEnvironment } from '../support/environment.ts'
import { start } from './http.ts'
import { percentile, rounded, walBytes } from './measure.ts'
import type { Row } from './rows.ts'
import { alone, type Target } from './turn-load.ts'

/**
 * What metering adds to a waited turn: pricing in memory, and the event in the statement that ends the turn, which is
 * measured as the difference that it makes to a statement that writes one row anyway, both in turn on one connection.
 */
const WARM_UP = 200
const TURNS = 300
const TRIES = 1000

const timed = async (work: () => Promise<unknown>): Promise<number> => {
  const started = performance.now()
  await work()
  return performance.now() - started
}

export async function run(): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const env = { ...testEnvironment(app.databaseUrl), MODEL_URL: `${app.double.url}/v1` }
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  for (const { child } of [web, worker]) child.stdout?.resume()
  const turn: Target = {
    url: web.url,
    path: `/api/v1/agents/${app.agentId}/generate`,
    token: app.key.token as string,
    body: { prompt: 'hello' },
  }
  try {
    await alone(turn, WARM_UP)
    const p50 = percentile(await alone(turn, TURNS), 0.5)
    const price = {
      provider: 'openai',
      model: 'gpt-test',
      unit: 'token',
      unit_price: 1e-6,
      effective_from: '2020-01-01',
    }
    const prices = ['input_tokens', 'output_tokens'].map(component => ({ ...price, component }))
    await app.admin.put(`/projects/${app.projectId}/prices`, { prices })

    const rate = () => priceUsage(app.services, [useOf(app.projectId)])
    for (let n = 0; n < WARM_UP; n++) await rate()
    const rating: number[] = []
    for (let n = 0; n < TRIES; n++) rating.push(await timed(rate))

    await db.query('create table bench_turns (id int primary key, n int); insert into bench_turns values (1, 0)')
    const end = (more: Fragment) =>
      app.services.pool.query(voidStatement`
      with ended as (update bench_turns set n = n + 1 where id = 1 returning id) ${more} select from ended`)
    const guard = sql.fragment`exists (select from ended)`
    const [without, having]: number[][] = [[], []]
    for (let n = 0; n < WARM_UP + TRIES; n++) {
      const used = sql.fragment`, used as (${usageInsert(await rate(), guard)})`
      const [least, most] = [await timed(() => end(sql.fragment``)), await timed(() => end(used))]
      if (n < WARM_UP) continue
      without.push(least)
      having.push(most)
    }
    const wal = async (part: () => Promise<Fragment>) => {
      const before = await walBytes(db)
      for (let n = 0; n < TRIES; n++) await end(await part())
      return ((await walBytes(db)) - before) / TRIES
    }
    const bytes =
      (await wal(async () => sql.fragment`, used as (${usageInsert(await rate(), guard)})`)) -
      (await wal(async () => sql.fragment``))
    const [memory, event] = [percentile(rating, 0.5), percentile(having, 0.5) - percentile(without, 0.5)]
    await app.services.pool.query(rawQuery('drop table bench_turns'))
    return [
      {
        what: 'metering of a turn, of its p50',
        value: rounded((100 * (memory + event)) / p50),
        unit: '%',
        target: '< 5',
        note: `${rounded(1000 * memory)} µs of pricing and ${rounded(1000 * event)} µs of its event in ${rounded(p50)} ms`,
      },
      { what: 'WAL of the event of a turn', value: rounded(bytes / 1024), unit: 'KiB' },
    ]
  } finally {
    web.child.kill()
    worker.child.kill()
    await db.end()
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
