import { setTimeout as sleep } from 'node:timers/promises'
import { addressOf } from '../db/database-url.ts'
import { listTables, prepareTarget, qualifiedName } from './move-target.ts'
import type { MovingCell } from './moving-cell.ts'
import { dropSlot, flushedPosition, quoted, rowsOf, untilReplayed, usableSlot, withoutSchema } from './replication.ts'

/** The logical replication from the source of a cell that is moved to its target. */

const POLL_MS = 20
const REPORT_MS = 5000

/** Lag of the target below which the source stops. */
const MOST_LAG_MS = 1000

/** Failures of the replication after which it ends. */
const MAX_FAILURES = 3

/** Starts the replication of all logged tables to the target, which it prepares. */
export async function startReplication({ move, source, target, replica, cell, report }: MovingCell): Promise<void> {
  const tables = await listTables(source, Object.values(move.source))
  await prepareTarget(target, tables, move.layout)
  const published = tables.filter(({ isLogged, isPartitioned }) => isLogged && !isPartitioned)
  await source.query(`drop publication if exists ${replica}`)
  await source.query(`create publication ${replica} for table ${published.map(qualifiedName).join(', ')}`)
  await dropSlot(source, replica)
  // A subscription to its own server cannot create its slot.
  await source.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [replica])
  await target.query(`create subscription ${replica} connection ${quoted(withoutSchema(cell.url))}
    publication ${replica} with (create_slot = false, slot_name = '${replica}', copy_data = true)`)
  report(`copying ${published.length} tables to ${addressOf(move.url)}`)
}

/** Waits until all tables are copied and the target is less than a second late. */
export async function untilNearlyReplayed(moving: MovingCell): Promise<void> {
  const { target, source, replica, report } = moving
  let reportedAt = performance.now()
  for (;;) {
    await requireProgress(moving)
    const [{ total, pending }] = await rowsOf(
      target,
      `select count(*)::int as total, count(*) filter (where srsubstate <> 'r')::int as pending
       from pg_subscription_rel where srsubid = (select oid from pg_subscription where subname = $1
         and subdbid = (select oid from pg_database where datname = current_database()))`,
      [replica],
    )
    if (pending === 0 && (await isReplayedWithin(moving, await flushedPosition(source), MOST_LAG_MS))) return
    if (performance.now() - reportedAt > REPORT_MS) {
      reportedAt = performance.now()
      report(
        `${total - pending} of ${total} tables are copied, the target lacks ${await lagOf(moving)} bytes of the log`,
      )
    }
    await sleep(POLL_MS)
  }
}

/** @throws Error if the replication fails repeatedly, or the source has removed its log */
async function requireProgress({ source, target, replica }: MovingCell): Promise<void> {
  const [stats] = await rowsOf(
    target,
    `select (apply_error_count + sync_error_count)::int as failures from pg_stat_subscription_stats where subname = $1`,
    [replica],
  )
  if ((stats?.failures ?? 0) >= MAX_FAILURES)
    throw new Error('the target cannot apply the changes of the source; the log of its server has the reason')
  if (!(await usableSlot(source, replica)))
    throw new Error('the source has removed the log that the target needs: raise max_slot_wal_keep_size')
}

/** Returns the bytes of the log that the target has not replayed. */
const lagOf = async ({ source, replica }: MovingCell): Promise<number> =>
  (
    await rowsOf(
      source,
      `select (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::float8 as bytes from pg_replication_slots
       where slot_name = $1`,
      [replica],
    )
  )[0]?.bytes ?? 0

/** Polls after which the progress of the replication is checked. */
const PROGRESS_POLLS = 50

/** Waits until the target has replayed a position of the source. False if it has not in time. */
async function isReplayedWithin(moving: MovingCell, lsn: string, withinMs: number): Promise<boolean> {
  let polls = 0
  const onPoll = async () => {
    if (++polls % PROGRESS_POLLS === 0) await requireProgress(moving)
  }
  const options = { lsn, withinMs, pauseMs: POLL_MS, isFlushed: true, onPoll }
  return (await untilReplayed(moving.source, moving.replica, options)) === 'replayed'
}

/** Waits until the target has replayed all changes of the source, which is fenced. */
export async function untilAllReplayed(moving: MovingCell): Promise<void> {
  const last = await flushedPosition(moving.source)
  while (!(await isReplayedWithin(moving, last, REPORT_MS)))
    moving.report(`the target lacks ${await lagOf(moving)} bytes of the log`)
}
