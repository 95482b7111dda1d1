import pg from 'pg'
import { eventually } from '../support/app.ts'
import { serverUrl } from '../support/postgres.ts'
import { type AgeingDeployment, startAgeing } from './ageing.ts'
import { amount, progress } from './fast.ts'
import { events, messages, runs, subscribe, toolTurns, turns } from './growth-work.ts'
import { rounded } from './measure.ts'
import type { Row } from './rows.ts'

/** Turns of a day; other work is a share of them. */
const TURNS = amount(2000, 160)
const DAYS = 7
/** Day with whose sizes the last one is compared: rows are then deleted as fast as they are written. */
const STEADY_DAY = 3
/** Days for which rows are kept. */
const KEPT = '2'
/** Smaller tables grow by whole pages. */
const BIG_BYTES = amount(1_000_000, 250_000)
/** Time for autovacuum to begin and end. */
const VACUUM_MS = 120_000

const RETENTION = Object.fromEntries(
  ['EVENT', 'WEBHOOK_DELIVERY', 'AUDIT', 'ACTIVITY', 'JOB', 'GUARDRAIL_EVALUATION'].map(name => [
    `${name}_RETENTION_DAYS`,
    KEPT,
  ]),
)

/** Dead rows of tables, the number at which autovacuum processes the table, and bytes with indexes and TOAST. */
const TABLES = `
  select coalesce(p.relname, c.relname) as name, sum(pg_total_relation_size(c.oid))::float8 as bytes, sum(s.n_dead_tup)::float8 as dead,
    sum(s.n_live_tup)::float8 as live,
    sum(coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
      + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0)) as allowed
  from pg_class c left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
  join pg_stat_all_tables s on s.relid = c.oid
  cross join lateral (
    select max(option_value::float8) filter (where option_name = 'autovacuum_vacuum_threshold') as threshold,
      max(option_value::float8) filter (where option_name = 'autovacuum_vacuum_scale_factor') as scale
    from pg_options_to_table(c.reloptions)) o
  where c.relkind = 'r' and c.relnamespace in ('public'::regnamespace, 'pgboss'::regnamespace)
  group by 1 order by bytes desc`

type Table = { name: string; bytes: number; dead: number; live: number; allowed: number }

const tablesOf = async (db: pg.Client): Promise<Table[]> => (await db.query(TABLES)).rows

/** Runs `work` while autovacuum checks the tables every second, as a day passes in less than a minute. */
async function withQuickAutovacuum<T>(work: () => Promise<T>): Promise<T> {
  const server = new pg.Client({ connectionString: await serverUrl() })
  await server.connect()
  const reload = () => server.query('select pg_reload_conf()')
  try {
    await server.query(`alter system set autovacuum_naptime = '1s'`)
    await reload()
    return await work()
  } finally {
    await server.query('alter system reset autovacuum_naptime')
    await reload()
    await server.end()
  }
}

/** The load of a day. */
async function loadOf(deployment: AgeingDeployment): Promise<() => Promise<void>> {
  await subscribe(deployment)
  const run = await runs(deployment, 21)
  return async () => {
    await turns(deployment, deployment.agentId, 'hello')(TURNS)
    await toolTurns(deployment)(TURNS / 4)
    await messages(deployment)(TURNS / 4)
    await run(TURNS / 10)
    await events(deployment)(TURNS)
    await deployment.settle()
  }
}

/** Simulates a week with its nightly sweeps; compares dead rows and sizes of the big tables with their bounds. */
export const week = (): Promise<Row[]> =>
  withQuickAutovacuum(async () => {
    const deployment = await startAgeing(RETENTION)
    const { db } = deployment
    try {
      const retention = Object.fromEntries(
        ['trace_content', 'trace', 'conversation', 'run'].map(name => [`${name}_retention_days`, Number(KEPT)]),
      )
      const { status, body } = await deployment.admin().patch(`/projects/${deployment.projectId}`, retention)
      if (status !== 200) throw new Error(JSON.stringify(body))
      const load = await loadOf(deployment)
      const nights: Table[][] = []
      for (let day = 1; day <= DAYS; day++) {
        progress(`day ${day} of a week`)
        await load()
        await deployment.pass(24)
        await deployment.settle()
        // Without an end in time, the dead rows exceed the bound below.
        const isVacuumed = async () => (await tablesOf(db)).every(({ dead, allowed }) => dead <= allowed)
        await eventually(isVacuumed, { within: VACUUM_MS, every: 500 }).catch(() => {})
        nights.push(await tablesOf(db))
      }
      return boundsOf(nights)
    } finally {
      await deployment.close()
    }
  })

function boundsOf(nights: readonly Table[][]): Row[] {
  const steady = new Map(nights[STEADY_DAY - 1].map(table => [table.name, table]))
  const big = nights[DAYS - 1].filter(({ bytes }) => bytes >= BIG_BYTES)
  const debts = big.map(({ name, dead, allowed }) => ({ name, value: dead / allowed }))
  // Rows without an expiry, such as usage, make their table larger every day.
  const sizes = big.map(({ name, bytes, live }) => {
    const before = steady.get(name) ?? { bytes, live }
    return { name, value: bytes / before.bytes / Math.max(1, live / Math.max(1, before.live)) }
  })
  const total = (tables: readonly Table[]) => tables.reduce((all, { bytes }) => all + bytes, 0)
  const row = (what: string, found: { name: string; value: number }[], target: string): Row => {
    const ordered = found.sort((one, other) => other.value - one.value)
    return {
      what,
      value: rounded(ordered[0]?.value ?? 0, 2),
      unit: 'x',
      target,
      isCount: true,
      note: ordered.map(({ name, value }) => `${name} ${rounded(value, 2)}`).join(', '),
    }
  }
  return [
    row(`dead rows after ${DAYS} days, of those at which autovacuum begins`, debts, '<= 1'),
    row(`largest growth of a table from day ${STEADY_DAY} to ${DAYS}`, sizes, '<= 1.2'),
    {
      what: `all tables after day ${DAYS}, of day ${STEADY_DAY}`,
      value: rounded(total(nights[DAYS - 1]) / total(nights[STEADY_DAY - 1]), 2),
      unit: 'x',
      note: nights.map((tables, n) => `day ${n + 1} ${rounded(total(tables) / 1e6)} MB`).join(', '),
    },
  ]
}
