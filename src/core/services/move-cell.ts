import { setTimeout as sleep } from 'node:timers/promises'
import { injectFault } from '../base/fault-injection.ts'
import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { openPool } from '../db/pool.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { lockCellMigrations } from '../queues/migrate.ts'
import { HOME } from './cell.ts'
import { CellRefusal, isSameSchema, listDirectory, NO_KEY, requireEmpty, sealedForCell } from './cell-directory.ts'
import { beginPause, type CellMove, endMove, findMove, insertMove } from './cell-moves.ts'
import {
  changingCopies,
  dropSubscriptions,
  dropTriggers,
  makeCopies,
  publicationOf,
  subscriptionsTo,
} from './copies.ts'
import { migrateCell } from './migrate-cells.ts'
import {
  type CellTable,
  copySequences,
  copyTable,
  findMismatches,
  listTables,
  planLayout,
  prepareTarget,
  qualifiedName,
  restoreTarget,
  schemasOf,
  tablesOf,
} from './move-target.ts'
import {
  areInOneDatabase,
  connect,
  dropSlot,
  dropSubscription,
  flushedPosition,
  inTransactionOf,
  quoted,
  rowsOf,
  schemaOf,
  untilReplayed,
  usableSlot,
  withoutSchema,
} from './replication.ts'

/**
 * Moves a cell to another database while it is in use. Logical replication brings its rows there. Once the target is less than a
 * second late, the state of the cell becomes `moving`: processes close it, and hold its requests. Then the schemas of the source
 * are renamed in one transaction that waits for the running writes (the fence), so that no process can write there. When the target
 * has replayed the log up to the fence, the directory gets its URL, and processes open the cell there.
 *
 * The table `cell_moves` at home has the move from its begin to its end, and the renamed schemas show whether the source is fenced.
 * An interrupted move begins again before the fence, and is finished after it. Until the directory is changed it can be cancelled.
 */

/** Reports progress. */
type Report = (text: string) => void

/** A finished move. */
export type MovedCell = {
  name: string
  from: string
  to: string
  state: 'open' | 'closed'
  /** Time for which the cell took no requests, without the time that processes take to open it. */
  pause_ms: number
  tables: number
  /** Rows in the target, estimated by its statistics. */
  rows: number
  bytes: number
  /** Schemas that remain at the source, and can be dropped. */
  remaining_schemas: string[]
}

/** Sessions and names of a move. */
type Moving = {
  home: Services
  cell: { name: string; number: number; url: string }
  move: CellMove
  source: DatabaseClient
  target: DatabaseClient
  /** Name of slot, publication and subscription. */
  replica: string
  report: Report
  requireLock: () => Promise<unknown>
}

const POLL_MS = 20
const REPORT_MS = 5000

/** Lag of the target below which the source stops. */
const MOST_LAG_MS = 1000

/** Failures of the replication after which it ends. */
const MAX_FAILURES = 3

/** Time that processes have to close the cell. They read the directory every five seconds if a notification is lost. */
const CLOSE_MS = 10_000

/** Age of a heartbeat after which its process counts as gone. */
const SILENT_MS = 15_000

/** Time that running writes have before their sessions are ended. */
const FENCE_GRACE_MS = 500
const FENCE_POLL_MS = 100

const STATEMENT_MS = 60_000

/**
 * Moves a cell to the database of a URL, or continues the move there.
 * @throws CellRefusal if the cell or the database does not permit it
 */
export const moveCell = (home: Services, name: string, url: string, report: Report): Promise<MovedCell> =>
  withoutTenant(() =>
    alone(home, name, async requireLock => {
      const cell = await findCell(home, name)
      const before = await findMove(home, name)
      if (before && before.url !== url)
        throw new CellRefusal(
          `cell ${name} is being moved to ${addressOf(before.url)}: repeat the command with this URL, or cancel it`,
        )
      const source = await connect(cell.url, { purpose: 'move' })
      try {
        if (before && (await isFenced(source, before))) {
          report(`continuing the move: ${addressOf(cell.url)} refuses writes`)
          return await withTarget(home, cell, source, before, { report, requireLock }, finish)
        }
        await requireSource(source)
        const target = await connect(url, { purpose: 'move' }).catch(error => {
          throw new CellRefusal(`the database ${addressOf(url)} does not answer: ${error.message}`)
        })
        await target.end()
        if (before) await undo(home, cell, source, before)
        const move = await begin(home, cell, source, url)
        return await withTarget(home, cell, source, move, { report, requireLock }, run)
      } finally {
        await source.end()
      }
    }),
  )

/**
 * Cancels the move of a cell, which continues in the state and database of before.
 * @returns the state
 * @throws CellRefusal if no move has begun
 */
export const cancelMove = (home: Services, name: string): Promise<{ state: string }> =>
  withoutTenant(() =>
    alone(home, name, async () => {
      const cell = await findCell(home, name)
      const move = await findMove(home, name)
      if (!move) throw new CellRefusal(`cell ${name} is not being moved`)
      const source = await connect(cell.url, { purpose: 'move' })
      try {
        await undo(home, cell, source, move)
      } finally {
        await source.end()
      }
      return { state: (await findCell(home, name)).state }
    }),
  )

/** Runs work on the move of a cell, for which no other command works; `requireLock` fails if the session of the lock has ended. */
async function alone<T>(
  home: Services,
  name: string,
  work: (requireLock: () => Promise<unknown>) => Promise<T>,
): Promise<T> {
  const session = await connect(home.config.DATABASE_LISTEN_URL, { purpose: 'move' })
  try {
    const [{ locked }] = await rowsOf(session, `select pg_try_advisory_lock(hashtext($1)) as locked`, [
      `muster move ${await schemaOf(session)} ${name}`,
    ])
    if (!locked) throw new CellRefusal(`another command moves cell ${name}`)
    return await work(() => session.query('select'))
  } finally {
    await session.end()
  }
}

async function findCell(home: Services, name: string) {
  if (name === HOME.name) throw new CellRefusal('home cannot be moved: it is the database of DATABASE_URL')
  const cell = (await listDirectory(home.pool, home)).find(each => each.name === name)
  if (!cell) throw new CellRefusal(`no cell is called ${name}`)
  const { number, url, state } = cell
  if (url === null) throw new CellRefusal(`cell ${name} cannot be moved: ${NO_KEY}`)
  if (state === 'down') throw new CellRefusal(`cell ${name} is down`)
  return { name, number, url, state }
}

/**
 * Requires that a name is of a cell that can be moved.
 * @throws CellRefusal
 */
export const requireMovable = async (home: Services, name: string): Promise<void> => void (await findCell(home, name))

async function requireSource(source: DatabaseClient): Promise<void> {
  const [{ wal_level }] = await rowsOf(source, `select current_setting('wal_level') as wal_level`)
  if (wal_level !== 'logical')
    throw new CellRefusal(`the server of the cell has wal_level = ${wal_level}; a move requires wal_level = logical`)
}

const fencedName = (schema: string, { fence }: Pick<CellMove, 'fence'>): string => `${schema}_moved_${fence}`

/** Whether the schemas of the source have been renamed. */
async function isFenced(source: DatabaseClient, move: CellMove): Promise<boolean> {
  const [{ fenced }] = await rowsOf(source, `select to_regnamespace($1) is not null as fenced`, [
    fencedName(move.source.tables, move),
  ])
  return fenced
}

/** Name of slot, publication and subscription of a move: one per cell of a server. */
async function replicaName(source: DatabaseClient, move: CellMove): Promise<string> {
  const [{ name }] = await rowsOf(
    source,
    `select 'muster_move_' || (select oid from pg_database where datname = current_database()) || '_' ||
       coalesce(to_regnamespace($1), to_regnamespace($2))::oid as name`,
    [fencedName(move.source.tables, move), move.source.tables],
  )
  return name
}

async function withTarget<T>(
  home: Services,
  cell: Moving['cell'],
  source: DatabaseClient,
  move: CellMove,
  watched: Pick<Moving, 'report' | 'requireLock'>,
  work: (moving: Moving) => Promise<T>,
): Promise<T> {
  const target = await connect(move.url, { purpose: 'move' })
  try {
    return await work({ home, cell, move, source, target, replica: await replicaName(source, move), ...watched })
  } finally {
    await target.end()
  }
}

/** Migrates the target and records the move. */
async function begin(
  home: Services,
  cell: Awaited<ReturnType<typeof findCell>>,
  source: DatabaseClient,
  url: string,
): Promise<CellMove> {
  const { name, state } = cell
  await withPools([cell.url, url], async (from, to) => {
    const address = addressOf(url)
    if (await isSameSchema(from, to)) throw new CellRefusal(`cell ${name} is in the database ${address}`)
    // Rows of the cell in another database are a backup, or were left by a move.
    await requireEmpty(home, to, '')
  })
  const target = await connect(url, { purpose: 'move' })
  try {
    if (await areInOneDatabase(source, target))
      throw new CellRefusal(
        `cell ${name} is in a schema of the database ${addressOf(url)}; a move requires another one`,
      )
    const schemas = await schemasOf(source)
    await requireFreeSchemas(target, schemas)
    await migrateCell(home.config, url)
    const tables = await listTables(target, Object.values(await schemasOf(target)))
    const mismatches = findMismatches(await listTables(source, Object.values(schemas)), tables)
    if (mismatches.length > 0) throw new CellRefusal(`${mismatches[0]}: run muster migrate before the move`)
    const [{ fence }] = await rowsOf(source, `select to_char(now() at time zone 'utc', 'YYYYMMDDHH24MISS') as fence`)
    const move: CellMove = {
      cell: name,
      url,
      state: state === 'closed' ? 'closed' : 'open',
      source: schemas,
      fence,
      layout: await planLayout(target, tables, schemas),
    }
    await insertMove(home, move)
    return move
  } finally {
    await target.end()
  }
}

/** Requires that no other tables have the schemas of the source in the target. */
async function requireFreeSchemas(target: DatabaseClient, source: { tables: string; queues: string }): Promise<void> {
  const own = new Set([await schemaOf(target), (await schemasOf(target)).queues])
  for (const schema of new Set([source.tables, source.queues])) {
    if (own.has(schema)) continue
    const [{ count }] = await rowsOf(
      target,
      `select count(*)::int as count from pg_class where relnamespace = to_regnamespace($1) and relkind in ('r', 'p')`,
      [schema],
    )
    if (count > 0)
      throw new CellRefusal(
        `the target has a schema ${schema} with tables; logical replication requires it for the tables of the cell`,
      )
  }
}

async function withPools<T>(
  [one, other]: [string, string],
  work: (one: Services['pool'], other: Services['pool']) => Promise<T>,
): Promise<T> {
  const open = (databaseUrl: string) => openPool({ databaseUrl, connections: 1, applicationName: 'muster move' })
  const first = await open(one)
  try {
    const second = await open(other)
    try {
      return await work(first, second)
    } finally {
      await second.end()
    }
  } finally {
    await first.end()
  }
}

/** Replicates the cell and switches to the target. A failure before the fence cancels the move. */
async function run(moving: Moving): Promise<MovedCell> {
  const { home, cell, move, source, report } = moving
  try {
    await injectFault(home, 'move_recorded')
    await replicate(moving)
    await injectFault(home, 'move_copying')
    await untilClose(moving)
    report('collecting the statistics of the target')
    await moving.target.query('analyze')
    return await pause(moving)
  } catch (error) {
    if (await isFenced(source, move).catch(() => true))
      throw new CellRefusal(`${messageOf(error)}; the old database refuses writes: repeat the command, or cancel it`, {
        cause: error,
      })
    await undo(home, cell, source, move)
    throw error
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

async function replicate({ move, source, target, replica, cell, report }: Moving): Promise<void> {
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
async function untilClose(moving: Moving): Promise<void> {
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
    if (pending === 0 && (await untilTargetHas(moving, await flushedPosition(source), MOST_LAG_MS))) return
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
async function requireProgress({ source, target, replica }: Moving): Promise<void> {
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

const lagOf = async ({ source, replica }: Moving): Promise<number> =>
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
async function untilTargetHas(moving: Moving, lsn: string, withinMs: number): Promise<boolean> {
  let polls = 0
  const onPoll = async () => {
    if (++polls % PROGRESS_POLLS === 0) await requireProgress(moving)
  }
  const options = { lsn, withinMs, pauseMs: POLL_MS, isFlushed: true, onPoll }
  return (await untilReplayed(moving.source, moving.replica, options)) === 'replayed'
}

/** Stops the cell, fences its source and finishes the move. */
async function pause(moving: Moving): Promise<MovedCell> {
  const { home, cell, move, source, report } = moving
  const migrations = await lockCellMigrations(cell.url)
  try {
    return await changingCopies(home, async homeSession => {
      const tables = await listTables(source, Object.values(move.source))
      const copied = await tablesOf(moving.target, move.layout)
      const mismatches = findMismatches(tables, copied)
      if (mismatches.length > 0) throw new Error(`${mismatches[0]}: the source was migrated during the move`)
      const since = performance.now()
      await beginPause(home, cell.name)
      report(`cell ${cell.name} takes no requests`)
      await untilClosed(moving)
      await injectFault(home, 'move_paused')
      await moving.requireLock()
      await fence(moving, homeSession, tables)
      await injectFault(home, 'move_fenced')
      return await switchOver(moving, homeSession, since)
    })
  } finally {
    await migrations.end()
  }
}

/** Waits until no process has the cell open: each deletes its heartbeat when it has closed it. */
async function untilClosed({ source, report }: Moving): Promise<void> {
  const deadline = performance.now() + CLOSE_MS
  for (;;) {
    const [{ count }] = await rowsOf(
      source,
      `select count(*)::int as count from worker_heartbeats where beat_at > now() - $1 * interval '1 ms'`,
      [SILENT_MS],
    )
    if (count === 0) return
    if (performance.now() > deadline) return report(`${count} processes have not closed the cell: they are cut off`)
    await sleep(POLL_MS)
  }
}

/**
 * Makes the source refuse writes. The locks wait for running writes, whose sessions are ended after half a second, so that the log
 * has no change of a renamed table. Statements that wait for the locks fail, because their tables are gone.
 */
async function fence(moving: Moving, homeSession: DatabaseClient, tables: readonly CellTable[]): Promise<void> {
  const { move, source, cell } = moving
  const subscriptions = await subscriptionsTo(source, await publicationOf(homeSession))
  const isAtHome = await areInOneDatabase(homeSession, source)
  const homeSchema = await schemaOf(homeSession)
  const helper = await connect(cell.url, { purpose: 'move' })
  const [{ pid }] = await rowsOf(source, 'select pg_backend_pid() as pid')
  const fenced = new AbortController()
  const ending = (async () => {
    // A session of the server itself, such as autovacuum, ends without this.
    for (let ms = FENCE_GRACE_MS; await elapsed(ms, fenced.signal); ms = FENCE_POLL_MS)
      await helper.query('select pg_terminate_backend(p) from unnest(pg_blocking_pids($1)) p', [pid]).catch(() => {})
  })()
  try {
    await inTransactionOf(source, async () => {
      await source.query(`set local statement_timeout = ${STATEMENT_MS}`)
      await source.query('set local synchronous_commit = on')
      // The triggers at home write to the cell: first, as a write at home locks its table before the tables of the cell.
      if (isAtHome) await inSchema(source, homeSchema, () => dropTriggers(source, move.source.tables))
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
    fenced.abort()
    await ending
    await helper.end()
  }
}

/** Waits. Returns false if the signal ends the wait. */
const elapsed = (ms: number, signal: AbortSignal): Promise<boolean> => sleep(ms, true, { signal }).catch(() => false)

async function inSchema<T>(client: DatabaseClient, schema: string, work: () => Promise<T>): Promise<T> {
  const [{ path }] = await rowsOf(client, `select current_setting('search_path') as path`)
  await client.query(`select set_config('search_path', $1, true)`, [schema])
  const result = await work()
  await client.query(`select set_config('search_path', $1, true)`, [path])
  return result
}

/** Finishes a move whose source is fenced. */
const finish = (moving: Moving): Promise<MovedCell> => {
  const since = performance.now()
  return changingCopies(moving.home, homeSession => switchOver(moving, homeSession, since))
}

/** Completes the target, and makes it the database of the cell. Every step can be repeated. */
async function switchOver(moving: Moving, homeSession: DatabaseClient, since: number): Promise<MovedCell> {
  const { home, cell, move, source, target, replica, report } = moving
  const { layout } = move
  if (await hasSubscription(target, replica)) {
    // The target has all changes: the subscription is dropped only after them.
    const last = await flushedPosition(source)
    while (!(await untilTargetHas(moving, last, REPORT_MS)))
      report(`the target lacks ${await lagOf(moving)} bytes of the log`)
    await dropSubscription(target, replica)
    await injectFault(home, 'move_replayed')
  }
  await dropSlot(source, replica)
  await source.query(`drop publication if exists ${replica}`)
  const left = [...new Set(Object.values(move.source))].map(schema => fencedName(schema, move))
  await inTransactionOf(target, async () => {
    await restoreTarget(target, layout)
    const own = await tablesOf(target, layout)
    for (const from of await listTables(source, left)) {
      const to = own.find(({ name }) => name === from.name)
      if (from.isLogged || !to) continue
      await target.query(`truncate ${qualifiedName(to)}`)
      await copyTable(source, target, from, to)
    }
    await copySequences(source, target, { source: left, target: [...new Set(Object.values(layout.schemas))] })
    await target.query(
      `insert into cells (name, number, url) values ($1, $2, $3)
       on conflict (name) do update set url = excluded.url, updated_at = now()`,
      [cell.name, cell.number, home.secrets.seal(move.url, sealedForCell(cell.name))],
    )
  })
  await injectFault(home, 'move_completed')
  // From here the target has the rights of home, without those revoked meanwhile.
  await dropSubscriptions(source, await publicationOf(homeSession))
  await makeCopies(home, homeSession, { ...cell, url: move.url })
  await injectFault(home, 'move_copied')
  await moving.requireLock()
  await endMove(home, cell.name, move.url)
  const pauseMs = Math.round(performance.now() - since)
  return { ...(await describe(moving)), pause_ms: pauseMs, remaining_schemas: left }
}

async function hasSubscription(target: DatabaseClient, name: string): Promise<boolean> {
  const [row] = await rowsOf(
    target,
    `select from pg_subscription where subname = $1
       and subdbid = (select oid from pg_database where datname = current_database())`,
    [name],
  )
  return row !== undefined
}

async function describe({ cell, move, target }: Moving): Promise<Omit<MovedCell, 'pause_ms' | 'remaining_schemas'>> {
  const tables = await tablesOf(target, move.layout)
  const [{ rows, bytes }] = await rowsOf(
    target,
    `select coalesce(sum(greatest(reltuples, 0)), 0)::float8 as rows,
       coalesce(sum(pg_total_relation_size(oid)), 0)::float8 as bytes
     from pg_class where oid = any ($1::regclass[]) and relkind = 'r'`,
    [tables.map(qualifiedName)],
  )
  const { name, url } = cell
  return { name, from: addressOf(url), to: addressOf(move.url), state: move.state, tables: tables.length, rows, bytes }
}

/** Returns a cell to its source, which takes writes again, and empties the target if it answers. */
async function undo(home: Services, cell: Moving['cell'], source: DatabaseClient, move: CellMove): Promise<void> {
  const replica = await replicaName(source, move)
  const target = await connect(move.url, { purpose: 'move' }).catch(() => null)
  try {
    if (target && (await hasSubscription(target, replica))) await dropSubscription(target, replica)
    await dropSlot(source, replica)
    await source.query(`drop publication if exists ${replica}`)
    const wasFenced = await isFenced(source, move)
    if (wasFenced) await unfence(source, move)
    if (target) await endCopies(home, target)
    if (target) await inTransactionOf(target, () => emptyTarget(source, target, move))
    await changingCopies(home, async homeSession => {
      if (wasFenced || (await isPaused(home, cell.name))) await makeCopies(home, homeSession, cell)
      await endMove(home, cell.name)
    })
  } finally {
    await target?.end()
  }
}

/** Ends the copies of the rows of home to a target that is abandoned after they began. */
const endCopies = (home: Services, target: DatabaseClient): Promise<void> =>
  changingCopies(home, async homeSession => dropSubscriptions(target, await publicationOf(homeSession)))

const isPaused = async (home: Services, name: string): Promise<boolean> =>
  (await listDirectory(home.pool, home)).some(cell => cell.name === name && cell.state === 'moving')

/** Tables whose rows a migration writes. */
const BOOKKEEPING = new Set(['migrations', 'breaking_migrations', 'version', 'queue', 'write_probe'])

/** Leaves a target as after its migration. */
async function emptyTarget(source: DatabaseClient, target: DatabaseClient, move: CellMove): Promise<void> {
  await restoreTarget(target, move.layout, { isEmptied: true })
  const there = await tablesOf(target, move.layout)
  for (const table of await listTables(source, Object.values(move.source))) {
    const to = there.find(({ name }) => name === table.name)
    if (to && BOOKKEEPING.has(table.name)) await copyTable(source, target, table, to)
  }
}

/** Gives the schemas of the source their names back. */
const unfence = (source: DatabaseClient, move: CellMove): Promise<void> =>
  inTransactionOf(source, async () => {
    if (move.source.tables !== move.source.queues) await source.query(`drop schema "${move.source.tables}"`)
    for (const schema of new Set(Object.values(move.source)))
      await source.query(`alter schema "${fencedName(schema, move)}" rename to "${schema}"`)
  })
