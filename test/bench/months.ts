import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { deleteExpiredEvents, eventMonths, lockExpiredEvents } from '#control/events/store.ts'
import { systemClock } from '#core/base/clock.ts'
import { idFloor, newId } from '#core/base/ids.ts'
import { createLog } from '#core/base/log.ts'
import { maintainMonths } from '#core/db/months.ts'
import { inTransaction, openPool } from '#core/db/pool.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { amount, progress } from './fast.ts'
import { rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * The drop of a month of events, compared with deletes of as many rows, and the wait of a writer meanwhile. Usage: npm run bench
 * months [-- --fast]
 */
const ROWS = amount(10_000_000, 500_000)
const DELETED = 50_000
const BATCH = 1000
const PROJECTS = 50

const monthStart = (offset: number): Date => {
  const now = new Date()
  return new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + offset))
}

/** Makes a partition of a past month with events of many projects, as the service writes them, and their counts. */
async function fillMonth(db: pg.Client, offset: number, rows: number): Promise<void> {
  const [first, next] = [monthStart(offset), monthStart(offset + 1)].map(time => idFloor('evt', time))
  const name = `events_${monthStart(offset).toISOString().slice(0, 7).replace('-', '_')}`
  await db.query(`create table ${name} partition of events for values from ('${first}') to ('${next}')`)
  await db.query(
    `insert into ${name} (id, project_id, name, resource_type, resource_id, packed, dispatched_at, created_at)
     select left($1, -8) || lpad(n::text, 8, '0'), 'proj_' || n % $2::int, 'generations.completed', 'generation',
       'gen_' || lpad(n::text, 26, '0'), convert_to(repeat(md5(n::text), 8), 'utf8'), $3, $3 from generate_series(1, $4::int) n`,
    [first, PROJECTS, monthStart(offset), rows],
  )
  await db.query(
    `insert into row_count_shards as c (scope, table_name, shard, count)
     select project_id, 'events', 0, count(*) from ${name} group by 1
     on conflict (scope, table_name, shard) do update set count = c.count + excluded.count`,
  )
  await db.query(`vacuum analyze ${name}`)
}

/** Writes events until it is stopped; returns the longest time of a write in milliseconds. */
async function longestWrite(db: pg.Client, stopping: AbortSignal): Promise<number> {
  let longest = 0
  while (!stopping.aborted) {
    const started = performance.now()
    await db.query(
      `insert into events (id, project_id, name, resource_type, resource_id, envelope, dispatched_at, created_at)
       values ($1, 'proj_0', 'a.b', 'a', 'b', '{}', now(), now())`,
      [newId('evt')],
    )
    longest = Math.max(longest, performance.now() - started)
    await sleep(2)
  }
  return longest
}

export async function run(): Promise<Row[]> {
  const { url, drop } = await cloneTemplate()
  const db = new pg.Client({ connectionString: url })
  const writer = new pg.Client({ connectionString: url })
  await Promise.all([db.connect(), writer.connect()])
  const pool = await openPool({ databaseUrl: url, connections: 2 })
  const sweep = { pool, clock: systemClock, log: createLog({ level: 'silent' }) }
  try {
    await db.query(`insert into projects (id, name) select 'proj_' || n, n from generate_series(0, ${PROJECTS - 1}) n`)
    await db.query('drop table events_before')
    await fillMonth(db, -4, DELETED)
    progress(`${DELETED} events are deleted one by one`)
    const before = monthStart(-3)
    const deleting = performance.now()
    for (let deleted = BATCH; deleted === BATCH; )
      deleted = await inTransaction(pool, async tx => {
        const ids = await lockExpiredEvents(tx, before, BATCH)
        await deleteExpiredEvents(tx, ids)
        return ids.length
      })
    const deletedMs = performance.now() - deleting
    await maintainMonths(sweep, eventMonths, before)
    progress(`a month of ${ROWS} events is written`)
    await fillMonth(db, -3, ROWS)
    progress('the month is dropped')
    const stopping = new AbortController()
    const writing = longestWrite(writer, stopping.signal)
    const dropping = performance.now()
    const removed = await maintainMonths(sweep, eventMonths, monthStart(-2))
    const droppedMs = performance.now() - dropping
    stopping.abort()
    if (removed !== ROWS) throw new Error(`${removed} rows were dropped`)
    return [
      { what: `retention of a month of ${ROWS} events`, value: rounded(droppedMs / 1000), unit: 's', target: '<= 1' },
      { what: 'longest write meanwhile', value: rounded(await writing), unit: 'ms' },
      { what: 'deletes of as many rows', value: rounded((deletedMs * ROWS) / DELETED / droppedMs), unit: '× the drop' },
    ]
  } finally {
    await pool.end()
    await Promise.all([db.end(), writer.end()])
    await drop()
  }
}
