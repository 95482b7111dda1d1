import { readdirSync, readFileSync } from 'node:fs'
import type pg from 'pg'

/** What work costs besides time: read before and after it. Processor times are in milliseconds. */

const TICK_MS = 10

/** Of all threads of a process, as Linux counts it; with `children` including the processes below it too, ended ones included. */
export function processorTime(pid: number, { children = false } = {}): number {
  let stat: string
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  } catch {
    // A child that has ended meanwhile.
    return 0
  }
  // After the name, which may hold anything: utime, stime, cutime, cstime.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const own = fields.slice(11, children ? 15 : 13).reduce((sum, ticks) => sum + Number(ticks) * TICK_MS, 0)
  if (!children) return own
  const below = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return below.split(' ').reduce((sum, child) => sum + processorTime(Number(child)), own)
}

/**
 * The same in nanosecond steps for threads and child processes that run: for differences between short rounds. Threads do not
 * end between them.
 */
export function exactTime(pid: number, { children = false } = {}): number {
  try {
    const threads = readdirSync(`/proc/${pid}/task`)
    const own = threads.reduce((sum, thread) => {
      const [ns] = readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')
      return sum + Number(ns) / 1e6
    }, 0)
    if (!children) return own
    const below = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
    return below.split(' ').reduce((sum, child) => sum + exactTime(Number(child)), own + endedChildren(pid))
  } catch {
    // A thread or child that has ended meanwhile.
    return 0
  }
}

/** Processor time of the children of a process that have ended. */
function endedChildren(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields.slice(13, 15).reduce((sum, ticks) => sum + Number(ticks) * TICK_MS, 0)
}

/** The process that the others of a PostgreSQL server on this machine are below; `db` is a superuser's connection. */
export async function postmaster(db: pg.Client): Promise<number> {
  const { rows } = await db.query(`select pg_read_file('postmaster.pid') as file`)
  return Number.parseInt(rows[0].file, 10)
}

/** Bytes of the write-ahead log so far. */
export async function walBytes(db: pg.Client): Promise<number> {
  const { rows } = await db.query(`select pg_current_wal_insert_lsn() - '0/0' as bytes`)
  return Number(rows[0].bytes)
}

/** Bytes of all tables of a database with their indexes, after invisible rows are gone. */
export async function tableBytes(db: pg.Client): Promise<number> {
  await db.query('vacuum')
  const { rows } = await db.query(`
    select sum(pg_total_relation_size(oid)) as bytes from pg_class
    where relkind = 'r' and relnamespace in ('public'::regnamespace, 'pgboss'::regnamespace)`)
  return Number(rows[0].bytes)
}

/** A share of times in order, such as 0.5 for the median. */
export const percentile = (times: readonly number[], share: number): number =>
  [...times].sort((a, b) => a - b)[Math.floor(times.length * share)]

export const median = (values: readonly number[]): number => percentile(values, 0.5)

/** Bounds between which the median of what the values are samples of lies in 95 % of cases, by the test of signs. */
export function medianInterval(values: readonly number[]): [low: number, high: number] {
  const sorted = [...values].sort((a, b) => a - b)
  const skipped = Math.max(0, Math.floor(sorted.length / 2 - 0.98 * Math.sqrt(sorted.length)))
  return [sorted[skipped], sorted[sorted.length - 1 - skipped]]
}

export const rounded = (value: number, digits = 1): number => Number(value.toFixed(digits))
