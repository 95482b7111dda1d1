import { setTimeout as sleep } from 'node:timers/promises'
import { pollUntil } from '../base/poll.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import type { CellMove } from './cell-moves.ts'
import { dropTriggers, publicationOf, subscriptionsTo } from './copies.ts'
import { type CellTable, qualifiedName } from './move-target.ts'
import { fencedName, type MovingCell, openMoveSession } from './moving-cell.ts'
import { areInOneDatabase, inTransactionOf, rowsOf, schemaOf } from './replication.ts'

/** The fence of a move: the source of the cell refuses writes once its schemas are renamed. */

/** Time that processes have to close the cell. They read the directory every five seconds if a notification is lost. */
const CLOSE_MS = 10_000
const CLOSE_POLL_MS = 20

/** Age of a heartbeat after which its process counts as gone. */
const SILENT_MS = 15_000

/** Time that running writes have before their sessions are ended. */
const FENCE_GRACE_MS = 500
const FENCE_POLL_MS = 100

const STATEMENT_MS = 60_000

/** Waits until no process has the cell open: each deletes its heartbeat when it has closed it. */
export async function untilCellClosed({ source, report }: MovingCell): Promise<void> {
  let open = 0
  const closed = await pollUntil(
    async () => {
      const [{ count }] = await rowsOf(
        source,
        `select count(*)::int as count from worker_heartbeats where beat_at > now() - $1 * interval '1 ms'`,
        [SILENT_MS],
      )
      open = count
      return open === 0 ? true : null
    },
    { withinMs: CLOSE_MS, pauseMs: CLOSE_POLL_MS },
  )
  if (!closed) report(`${open} processes have not closed the cell: they are cut off`)
}

/**
 * Makes the source refuse writes. The locks wait for running writes, whose sessions are ended after half a second, so that the log
 * has no change of a renamed table. Statements that wait for the locks fail, because their tables are gone.
 */
export async function fenceSource(
  moving: MovingCell,
  homeSession: DatabaseClient,
  tables: readonly CellTable[],
): Promise<void> {
  const { move, source, cell } = moving
  const subscriptions = await subscriptionsTo(source, await publicationOf(homeSession))
  const isAtHome = await areInOneDatabase(homeSession, source)
  const homeSchema = await schemaOf(homeSession)
  const blocked = await endBlockingSessions(source, cell.url)
  try {
    await inTransactionOf(source, async () => {
      await source.query(`set local statement_timeout = ${STATEMENT_MS}`)
      await source.query('set local synchronous_commit = on')
      // The triggers at home write to the cell: first, as a write at home locks its table before the tables of the cell.
      if (isAtHome) await withSearchPath(source, homeSchema, () => dropTriggers(source, move.source.tables))
      await source.query(`lock table ${tables.map(qualifiedName).join(', ')} in share mode`)
      for (const { name } of subscriptions) await source.query(`alter subscription ${name} disable`)
      for (const schema of new Set(Object.values(move.source)))
        await source.query(`alter schema "${schema}" rename to "${fencedName(schema, move)}"`)
      if (move.source.tables !== move.source.queues) {
        await source.query(`create schema "${move.source.tables}"`)
        await source.query(`grant usage on schema "${move.source.tables}" to public`)
      }
    })
  } finally {
    await blocked.stop()
  }
}

/** Ends the sessions that the statements of a session wait for, after a grace period, until it is stopped. */
async function endBlockingSessions(session: DatabaseClient, url: string): Promise<{ stop(): Promise<void> }> {
  const [{ pid }] = await rowsOf(session, 'select pg_backend_pid() as pid')
  const helper = await openMoveSession(url)
  const stopping = new AbortController()
  const ending = (async () => {
    // A session of the server itself, such as autovacuum, ends without this.
    for (let ms = FENCE_GRACE_MS; await waitUnlessAborted(ms, stopping.signal); ms = FENCE_POLL_MS)
      await helper.query('select pg_terminate_backend(p) from unnest(pg_blocking_pids($1)) p', [pid]).catch(() => {})
  })()
  return {
    async stop() {
      stopping.abort()
      await ending
      await helper.end()
    },
  }
}

/** Waits. Returns false if the signal ends the wait. */
const waitUnlessAborted = (ms: number, signal: AbortSignal): Promise<boolean> =>
  sleep(ms, true, { signal }).catch(() => false)

/** Runs work of a transaction with a schema as the current one. */
async function withSearchPath<T>(client: DatabaseClient, schema: string, work: () => Promise<T>): Promise<T> {
  const [{ path }] = await rowsOf(client, `select current_setting('search_path') as path`)
  await client.query(`select set_config('search_path', $1, true)`, [schema])
  const result = await work()
  await client.query(`select set_config('search_path', $1, true)`, [path])
  return result
}

/** Gives the schemas of the source their names back. */
export const unfenceSource = (source: DatabaseClient, move: CellMove): Promise<void> =>
  inTransactionOf(source, async () => {
    if (move.source.tables !== move.source.queues) await source.query(`drop schema "${move.source.tables}"`)
    for (const schema of new Set(Object.values(move.source)))
      await source.query(`alter schema "${fencedName(schema, move)}" rename to "${schema}"`)
  })
