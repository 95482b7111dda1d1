import { readdirSync, readFileSync } from 'node:fs'
import type pg from 'pg'

/** What work costs besides time: read before and after it. Processor times are in milliseconds. */

const TICK_MS = 10

/** Of a process: its own processor time, and that of the children it has waited for. */
function times(pid: number | string): { parent: number; own: number; ended: number } {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  // Behind the name, which may hold anything.
  const fields = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .map(Number)
  return { parent: fields[1], own: (fields[11] + fields[12]) * TICK_MS, ended: (fields[13] + fields[14]) * TICK_MS }
}

export const processorTime = (pid: number): number => times(pid).own

/** Of a PostgreSQL server on this machine with all its processes; `db` is a superuser's connection. */
export async function databaseTime(db: pg.Client): Promise<number> {
  const { rows } = await db.query(`select split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int as pid`)
  const postmaster: number = rows[0].pid
  const { own, ended } = times(postmaster)
  let total = own + ended
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue
    try {
      const child = times(entry)
      if (child.parent === postmaster) total += child.own
    } catch {
      // It has ended meanwhile.
    }
  }
  return total
}

/** Bytes of the write-ahead log so far. */
export async function walBytes(db: pg.Client): Promise<number> {
  const { rows } = await db.query(`select pg_current_wal_insert_lsn() - '0/0' as bytes`)
  return Number(rows[0].bytes)
}

/** Bytes of all tables of a database with their indexes, after what nobody sees any more has gone. */
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

export const rounded = (value: number, digits = 1): number => Number(value.toFixed(digits))
