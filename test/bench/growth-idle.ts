import type { ChildProcess } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { migrate } from '#core/queues/migrate.ts'
import { startEmbedded } from '#local/postgres.ts'
import { testEnvironment } from '../support/environment.ts'
import { amount, progress } from './fast.ts'
import { exactTime, postmaster, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'

const WORKERS = 100
/** Processes that the workers are in: as many processes as workers would need 10 GB. */
const PROCESSES = 5
const SECONDS = amount(180, 60)
/** Until the work at the start of the workers has ended, and the statements of every five seconds are prepared. */
const SETTLE_MS = 90_000
const SHOWN = 6

/** Measures the processor time of a database with idle workers, compared with the same server without them. */
export async function idleWorkers(): Promise<Row[]> {
  // A separate server: one worker has about nine connections.
  const server = await startEmbedded({
    dir: mkdtempSync(path.join(tmpdir(), 'muster-bench-')),
    ephemeral: true,
    settings: [
      'max_connections=1500',
      'shared_preload_libraries=pg_stat_statements',
      'pg_stat_statements.track_planning=on',
    ],
  })
  const db = new pg.Client({ connectionString: server.url })
  await db.connect()
  const children: ChildProcess[] = []
  try {
    await migrate(server.url)
    await db.query('create extension pg_stat_statements')
    const pid = await postmaster(db)
    const shareOf = async (seconds: number) => {
      const [time, from] = [exactTime(pid, { children: true }), performance.now()]
      await sleep(seconds * 1000)
      return (100 * (exactTime(pid, { children: true }) - time)) / (performance.now() - from)
    }
    progress('a server without workers')
    const floor = await shareOf(SECONDS / 3)
    progress(`start of ${WORKERS} workers`)
    for (let n = 0; n < PROCESSES; n++) {
      const args = [String(WORKERS / PROCESSES), `worker-${n}`]
      const { child } = await start('test/bench/idle-workers.ts', testEnvironment(server.url), args)
      child.stdout?.resume()
      children.push(child)
    }
    await sleep(SETTLE_MS)
    progress('idle workers')
    await db.query('select pg_stat_statements_reset()')
    const share = await shareOf(SECONDS)
    const { rows } = await db.query(`
      select sum(calls) over () as all_calls, calls::float8, total_exec_time + total_plan_time as ms, left(query, 400) as query
      from pg_stat_statements where toplevel order by ms desc`)
    if (rows.length < SHOWN) throw new Error('the workers executed no statements')
    const costs = rows.slice(0, SHOWN).map(({ calls, ms, query }) => {
      const text = query.replaceAll(/\s+/g, ' ').slice(0, 50)
      return `${rounded(calls / SECONDS)}/s of ${rounded(ms / calls, 2)} ms: ${text}`
    })
    return [
      {
        what: `processor time of the database with ${WORKERS} idle workers`,
        value: rounded(share, 2),
        unit: '% of a core',
        target: '<= 5',
        note: `${floor.toFixed(2)} % without workers; the workers are in ${PROCESSES} processes`,
      },
      {
        what: `statements of ${WORKERS} idle workers`,
        value: rounded((rows[0]?.all_calls ?? 0) / SECONDS),
        unit: '1/s',
        note: costs.join('; '),
      },
    ]
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await db.end()
    await server.stop()
  }
}
