import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startCountingProxy } from './counting-proxy.ts'
import { amount, progress } from './fast.ts'
import { percentile, postmaster, processorTime, rounded, walBytes } from './measure.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'
import { CALLERS } from './turn-load.ts'

/** The cost of one operation, compared with the same work by other programs in the same run. */

const WARM_UP_MS = amount(4000, 600)
const MEASURED_MS = amount(4000, 700)
/** Until work after the last response has ended. */
const SETTLED_MS = amount(2000, 500)
/** Sessions report the rows that they wrote when they are idle for ten seconds, or sooner when a later transaction ends. */
const REPORTED_MS = amount(11_000, 1200)

/** A program that does an operation for callers that wait. */
export type Program = {
  /** Scripts by the names of their processes; callers call the first. */
  processes: Record<string, { script: string; args?: string[] }>
  env: Record<string, string>
  call(url: string): Promise<unknown>
}

/** Sends a POST and reads the answer; throws unless it succeeds. */
export async function postTo(url: string, body: object, token = ''): Promise<void> {
  const answer = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) },
    body: JSON.stringify(body),
  })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}: ${text.slice(0, 300)}`)
}

/** The reference for durable work: workflows of DBOS, on a separate database. */
export const dbosProgram = (env: Record<string, string>, path: string): Program => ({
  processes: { dbos: { script: 'test/bench/dbos.ts' } },
  env,
  call: url => postTo(`${url}${path}`, {}),
})

/** Bare Express with the same effects outside. */
export const floorProgram = (env: Record<string, string>, call: Program['call']): Program => ({
  processes: { floor: { script: 'test/bench/floor.ts' } },
  env,
  call,
})

async function launch({ processes, env }: Program, databaseUrl = env.DATABASE_URL) {
  const settings = { ...env, LOG_LEVEL: 'info', DATABASE_URL: databaseUrl }
  const entries = await Promise.all(
    Object.entries(processes).map(async ([name, { script, args }]) => {
      const { url, child } = await start(script, settings, args)
      child.stdout?.resume()
      return { name, url, child }
    }),
  )
  const started = Object.fromEntries(entries.map(({ name, child }) => [name, child]))
  return { url: entries[0].url, started, stop: () => entries.map(({ child }) => child.kill('SIGKILL')) }
}

/** Milliseconds of each operation of some callers, who begin none after `ms`. */
async function times(call: () => Promise<unknown>, callers: number, ms: number): Promise<number[]> {
  const taken: number[] = []
  const end = performance.now() + ms
  const caller = async () => {
    for (let started = performance.now(); started < end; started = performance.now()) {
      await call()
      taken.push(performance.now() - started)
    }
  }
  await Promise.all(Array.from({ length: callers }, caller))
  return taken
}

/** Rows of all tables of a database that were inserted, updated and deleted, and updates that wrote no index. */
async function rowsWritten(db: pg.Client): Promise<{ written: number; updated: number; hot: number }> {
  const { rows } = await db.query(`
    select sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 as written, sum(n_tup_upd)::float8 as updated,
      sum(n_tup_hot_upd)::float8 as hot
    from pg_stat_user_tables`)
  return rows[0]
}

type ServerCosts = {
  one: number[]
  many: number[]
  processor: Record<string, number>
  written: number
  hot: number
  wal: number
}
type WireCosts = { trips: number; statements: number }
type Costs = ServerCosts & WireCosts

const costsOf = async (program: Program): Promise<Costs> => ({
  ...(await serverCosts(program)),
  ...(await wireCosts(program)),
})

/** Times, processor time and writes of an operation. */
async function serverCosts(program: Program): Promise<ServerCosts> {
  const db = new pg.Client(program.env.DATABASE_URL)
  await db.connect()
  const server = await postmaster(db)
  const { url, started, stop } = await launch(program)
  const call = () => program.call(url)
  const used = (): Record<string, number> => ({
    ...Object.fromEntries(Object.entries(started).map(([name, { pid }]) => [name, processorTime(pid as number)])),
    PostgreSQL: processorTime(server, { children: true }),
  })
  try {
    await times(call, CALLERS, WARM_UP_MS)
    await sleep(REPORTED_MS)
    const [wal, rows] = [await walBytes(db), await rowsWritten(db)]
    const one = await times(call, 1, MEASURED_MS)
    const before = used()
    const many = await times(call, CALLERS, MEASURED_MS)
    const after = used()
    const count = one.length + many.length
    await sleep(REPORTED_MS)
    const [walAfter, rowsAfter] = [await walBytes(db), await rowsWritten(db)]
    const updated = rowsAfter.updated - rows.updated
    return {
      one,
      many,
      processor: Object.fromEntries(
        Object.entries(after).map(([name, ms]) => [name, (ms - before[name]) / many.length]),
      ),
      written: (rowsAfter.written - rows.written) / count,
      hot: updated > 0 ? (rowsAfter.hot - rows.hot) / updated : 1,
      wal: (walAfter - wal) / count / 1024,
    }
  } finally {
    stop()
    await db.end()
  }
}

/** Statements and round trips of an operation, by processes behind a proxy. What an equal time without callers takes is subtracted. */
async function wireCosts(program: Program): Promise<WireCosts> {
  const proxy = await startCountingProxy(program.env.DATABASE_URL)
  const { url, stop } = await launch(program, proxy.url)
  const counted = async <T>(work: () => Promise<T>) => {
    const trips = proxy.trips
    proxy.take()
    const result = await work()
    return { result, trips: proxy.trips - trips, statements: proxy.take().reduce((sum, { count }) => sum + count, 0) }
  }
  try {
    const call = () => program.call(url)
    await times(call, 1, WARM_UP_MS)
    const busy = await counted(() => times(call, 1, MEASURED_MS))
    await sleep(SETTLED_MS)
    const idle = await counted(() => sleep(MEASURED_MS))
    const { length } = busy.result
    return { trips: (busy.trips - idle.trips) / length, statements: (busy.statements - idle.statements) / length }
  } finally {
    stop()
    proxy.close()
  }
}

const total = ({ processor }: Costs): number => Object.values(processor).reduce((sum, ms) => sum + ms, 0)

/**
 * Measures an operation and prints each cost with the cost in other programs, one after the other, so that no program takes
 * processor time of another: times of one caller and of many, processor time in each process, round trips, statements, WAL, and rows.
 */
export async function costRows(what: string, ours: Program, others: Record<string, Program>): Promise<Row[]> {
  progress(`cost of a ${what}`)
  const costs = await costsOf(ours)
  const beside: [string, Costs][] = []
  for (const [name, program] of Object.entries(others)) {
    progress(`cost of a ${what}: ${name}`)
    beside.push([name, await costsOf(program)])
  }
  const row = (
    measured: string,
    unit: string,
    value: (costs: Costs) => number,
    detail: (costs: Costs) => string = () => '',
  ): Row => {
    const shown = (of: Costs) => `${rounded(value(of), 2)}${detail(of) && ` (${detail(of)})`}`
    const notes = beside.map(([name, of]) => `${name} ${shown(of)}`)
    const own = detail(costs)
    return {
      what: `${what}: ${measured}`,
      value: rounded(value(costs), 2),
      unit,
      note: [...(own ? [own] : []), ...notes].join('; '),
    }
  }
  const p99 = (taken: number[]) => `p99 ${rounded(percentile(taken, 0.99), 2)}`
  const parts = ({ processor }: Costs) =>
    Object.entries(processor)
      .map(([name, ms]) => `${name} ${rounded(ms, 2)}`)
      .join(' + ')
  return [
    row(
      'p50, one caller',
      'ms',
      ({ one }) => percentile(one, 0.5),
      ({ one }) => p99(one),
    ),
    row(
      `p50, ${CALLERS} callers`,
      'ms',
      ({ many }) => percentile(many, 0.5),
      ({ many }) => p99(many),
    ),
    row(`processor time, ${CALLERS} callers`, 'ms', total, parts),
    row('round trips', '', ({ trips }) => trips),
    row('statements', '', ({ statements }) => statements),
    row('WAL', 'KiB', ({ wal }) => wal),
    row(
      'rows written',
      '',
      ({ written }) => written,
      ({ hot }) => `${Math.round(hot * 100)} % of updates HOT`,
    ),
  ]
}
