import pg from 'pg'
import { foldProject } from '#control/usage/folds.ts'
import { startApp } from '../support/app.ts'
import { median } from './measure.ts'
import type { Row } from './rows.ts'

/** Usage events of one project over 30 days, and their differences. */
const EVENTS = Number(process.env.USAGE_EVENTS ?? 1_000_000)
const DAYS = 30
const MODELS = 5
const AGENTS = 20
const REQUESTS = 9
const BATCH = 50_000

const COMPONENTS = JSON.stringify([
  {
    component: 'input_tokens',
    quantity: 100,
    unit: 'token',
    billable: true,
    unit_price: 1e-6,
    cost_usd: 1e-4,
    price_id: 'p1',
  },
  {
    component: 'cached_tokens',
    quantity: 20,
    unit: 'token',
    billable: true,
    unit_price: 1e-7,
    cost_usd: 2e-6,
    price_id: 'p1',
  },
  {
    component: 'output_tokens',
    quantity: 50,
    unit: 'token',
    billable: true,
    unit_price: 2e-6,
    cost_usd: 1e-4,
    price_id: 'p2',
  },
])

/** Reports over many events, and what adding them up costs a writer. */
export async function run(): Promise<Row[]> {
  const app = await startApp()
  try {
    const project = await app.project()
    const client = new pg.Client(app.databaseUrl)
    await client.connect()
    // Every model of every agent has events in nearly every hour.
    const insert = (from: number, to: number) =>
      client.query(
        `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, ai_provider_id, agent_id, actor_id, session_id,
           generation_id, trace_id, cost_usd, tokens, components, created_at)
         select 'ue_' || lpad(n::text, 26, '0'), $1, 'gen:' || n, 'llm_tokens', 'openai', 'model ' || n % ${MODELS}, 'aip_' || n % ${MODELS},
           'agent_' || (n / ${MODELS}) % ${AGENTS}, 'actor_' || n % 1000, 'sess_' || n % 20000, 'gen_' || n, 'trace_' || n, 0.000202, 170, $2::jsonb,
           now() - (${EVENTS} - n)::float8 / ${EVENTS} * interval '${DAYS} days'
         from generate_series($3::int, $4::int) n`,
        [project.id, COMPONENTS, from, to],
      )
    for (let n = 1; n <= EVENTS; n += BATCH) await insert(n, Math.min(EVENTS, n + BATCH - 1))
    await client.query('vacuum analyze usage_events')
    await foldProject(app.services.pool, project.id)
    await client.query('vacuum analyze folded_usage_rollups')
    await client.query('vacuum analyze folded_usage_sums')
    const from = new Date(Date.now() - DAYS * 86_400_000 + 1_234_567).toISOString()
    const to = new Date().toISOString()
    const timed = async (path: string): Promise<number> => {
      const times: number[] = []
      for (let n = 0; n < REQUESTS; n++) {
        const start = performance.now()
        const { status, body } = await project.key.get(path)
        if (status !== 200) throw new Error(`${path}: ${JSON.stringify(body)}`)
        times.push(performance.now() - start)
      }
      return median(times)
    }
    const writes = async (): Promise<number> => {
      const start = performance.now()
      await client.query(
        `do $$ begin for n in 1..2000 loop
           insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, agent_id, cost_usd, tokens, components)
           select gen_random_uuid(), '${project.id}', gen_random_uuid(), 'llm_tokens', 'openai', 'm', 'agent_1', 0.000202, 170, '${COMPONENTS}';
           commit; end loop; end $$`,
      )
      return (performance.now() - start) / 2000
    }
    const range = `from=${from}&to=${to}`
    const rows: Row[] = []
    const add = (what: string, ms: number, more: Pick<Row, 'target' | 'note'> = {}) =>
      rows.push({ what, value: Math.round(ms * 100) / 100, unit: 'ms', ...more })
    const large = { target: '< 150', note: `${EVENTS} events of ${DAYS} days` }
    add('aggregate by day', await timed(`/usage/aggregate?group_by=day&${range}`), large)
    add('aggregate by model', await timed(`/usage/aggregate?group_by=model&${range}`), large)
    add('series of days, by model', await timed(`/usage/timeseries?interval=day&group_by=model&${range}`), large)
    add('aggregate of a session', await timed(`/usage/aggregate?session_id=sess_7&${range}`), {
      note: 'out of its events',
    })
    add('aggregate by session', await timed(`/usage/aggregate?group_by=session&${range}`), {
      note: 'out of all events',
    })
    await writes()
    const summed = await writes()
    await client.query('alter table usage_events disable trigger usage_events_added')
    add('adding an event up', summed - (await writes()), { note: 'of a write of the database' })
    await client.end()
    return rows
  } finally {
    await app.close()
  }
}
