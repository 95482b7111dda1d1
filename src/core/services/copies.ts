import { z } from 'zod'
import type { CellIdentity } from '../base/current-cell.ts'
import { settledWithin } from '../base/event-loop.ts'
import { pollUntil } from '../base/poll.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { parseDatabaseUrl } from '../db/database-url.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { onSeparateConnection } from '../db/pool.ts'
import { type Fragment, type Queryable, rawFragment, sql } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { isolateFailures } from '../work/sweeps.ts'
import { raiseUnavailable, unavailableCellName } from './cell.ts'
import { readCells, sealedForCell } from './cell-directory.ts'
import type { Cells } from './cells.ts'
import { copyRows, findDifferences, HOME_TABLES, type HomeTable, type Side } from './copied-rows.ts'
import {
  areInOneDatabase,
  connect,
  dropSlot,
  dropSubscription,
  flushedPosition,
  inTransactionOf,
  isSameDatabase,
  quoted,
  rowsOf,
  schemaOf,
  untilReplayed,
  usableSlot,
  withoutSchema,
} from './replication.ts'

/**
 * Copies of the rows of the deployment in its cells: rows of projects reference them, and a cell authorizes without home. They are
 * written at home only. Triggers copy them to a cell in the same database, in the transaction of the change; logical replication
 * copies them to a cell in another database.
 */

const copiedTables: ReadonlySet<string> = new Set(HOME_TABLES.map(({ table }) => table))

/** Whether the rows of a table are copied from home to the cells. */
export const isCopied = (table: string): boolean => copiedTables.has(table)

/** Condition of the rows `t` of a table with a project that are no copies; null at home. */
export const ownRows = ({ cell }: Pick<Services, 'cell'>): Fragment | null =>
  cell?.number ? sql.fragment`t.project_id is not null` : null

/**
 * Reads rows that belong to the deployment or to projects of all cells: at home with `db`, and in each other cell, whose copies
 * `read` leaves out. Raises CELL_UNAVAILABLE if the database of a cell is unavailable, unless the result may be partial; other
 * errors are raised in both cases.
 */
export async function readEverywhere<T>(
  { cell, cells }: Pick<Services, 'cell' | 'cells'>,
  db: Queryable,
  read: (db: Queryable, isHome: boolean) => Promise<T>,
  { partial = false } = {},
): Promise<T[]> {
  const others = cells && cell?.number === 0 ? cells.all().filter(({ number }) => number !== 0) : []
  const readThere = async (there: CellIdentity): Promise<T[]> => {
    try {
      const { pool } = (cells as Cells).numbered(there.number)
      // Not the pool of home's transaction: work in a cell that holds a connection never waits for one of home.
      return [await raiseUnavailable(there, () => onSeparateConnection(() => read(pool, false)))]
    } catch (error) {
      if (partial && unavailableCellName(error) !== null) return []
      throw error
    }
  }
  // Not concurrently: a failure in a cell would end the transaction of `db` while its statement runs.
  const there = await Promise.all(others.map(readThere))
  return [await read(db, true), ...there.flat()]
}

/** Thrown if rows cannot be copied to a cell; the message says what must be changed. */
export class CopiesNotPossibleError extends Error {}

export type Target = { name: string; number: number; url: string }

const sameRow = sql.type(z.strictObject({ same: z.boolean() }))

/** Whether a cell is in the database of home: it sees the lock of the listening connection of home. Null if that is down. */
const isInHomeDatabase = processSingleton((cell: Services) => {
  let known: Promise<boolean | null> | undefined
  return (home: Services): Promise<boolean | null> => {
    known ??= (async () => {
      const presence = home.notifications.healthy() ? home.notifications.presence() : ''
      if (presence === '') return null
      const { same } = await cell.pool.one(sameRow`select ${rawSame(presence)} as same`)
      // The lock ends with the connection.
      return same || home.notifications.presence() === presence ? same : null
    })()
    known.then(
      same => {
        if (same === null) known = undefined
      },
      () => {
        known = undefined
      },
    )
    return known
  }
})

const rawSame = (presence: string): Fragment => rawFragment(isSameDatabase.replace('$1', `(${presence})`))

/** Runs work with a session at home. */
async function atHome<T>(home: Pick<Services, 'config'>, work: (client: DatabaseClient) => Promise<T>): Promise<T> {
  const client = await connect(home.config.DATABASE_LISTEN_URL)
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

/** Runs work at home that starts or stops copies, one at a time. */
export const withCopiesLock = <T>(
  home: Pick<Services, 'config'>,
  work: (client: DatabaseClient) => Promise<T>,
): Promise<T> =>
  atHome(home, async client => {
    await client.query(`select pg_advisory_lock(hashtext('muster copies'))`)
    return work(client)
  })

/**
 * Starts copying the rows of home to a cell, which has been migrated, with all rows so far. Copies that lack a part of the log, or
 * that differ from home, are made again.
 * @throws CopiesNotPossibleError
 */
export const startCopies = (home: Services, cell: Target): Promise<void> =>
  withoutTenant(() => withCopiesLock(home, source => makeCopies(home, source, cell)))

/** Starts copies as `startCopies` does, with the session of `withCopiesLock`. */
export async function makeCopies(home: Services, source: DatabaseClient, cell: Target): Promise<void> {
  const target = await connect(cell.url)
  try {
    if (await areInOneDatabase(source, target)) await copyByTriggers(home, source, await schemaOf(target), cell)
    else await copyByReplication(home, source, target, cell)
  } finally {
    await target.end()
  }
}

/** Stops copying the rows of home to a cell. Without an answer of the cell, its subscription remains there. */
export const stopCopies = (home: Pick<Services, 'config'>, cell: Target): Promise<void> =>
  withoutTenant(() =>
    withCopiesLock(home, async source => {
      await dropTriggers(source, schemaOfUrl(cell.url))
      const target = await connect(cell.url).catch(() => null)
      try {
        if (target) await dropSubscriptions(target, await publicationOf(source))
      } finally {
        await target?.end()
        await dropSlot(source, await slotName(source, cell))
      }
    }),
  )

/**
 * Connects cells again that do not reach home, and makes copies again that lack a part of the log, that differ from home, or that
 * were stopped by a failed start. A sweep.
 */
export async function repairCopies(home: Services): Promise<number> {
  if (!home.cells || home.cell?.number !== 0) return 0
  for (const { name } of await readCells(home))
    await isolateFailures(home, { cell: name }, () =>
      withoutTenant(() =>
        withCopiesLock(home, async source => {
          // Read while no command stops the copies.
          const row = (await readCells(home)).find(cell => cell.name === name)
          const plain = row && home.secrets.open(row.url, sealedForCell(name))
          if (plain?.ok && row && row.state !== 'down' && row.state !== 'moving')
            await makeCopies(home, source, { name, number: row.number, url: plain.value })
        }),
      ),
    )
  return 0
}

/** Logs that copies in a cell are made again. */
const logDifferences = ({ log }: Pick<Services, 'log'>, { name }: Pick<Target, 'name'>, tables: readonly string[]) =>
  log.warn({ cell: name, tables }, 'copies in the cell differ from home and are made again')

const schemaOfUrl = (databaseUrl: string): string => parseDatabaseUrl(databaseUrl).schema ?? 'public'

const triggerName = (schema: string): string => `copy_to_${schema}`

/** Drops the triggers at home that copy rows to a schema. */
export async function dropTriggers(client: DatabaseClient, schema: string): Promise<void> {
  for (const { table } of HOME_TABLES) await client.query(`drop trigger if exists ${triggerName(schema)} on ${table}`)
}

/** Statement that counts the triggers of a name on tables of home. */
const triggerCount = (name: string, tables: string): string => `(
  select count(*)::int as count from pg_trigger join pg_class c on c.oid = tgrelid
  where tgname = ${name} and relname = any (${tables}) and relnamespace = current_schema()::regnamespace)`

/** Whether triggers copy the rows of home to a schema. */
async function hasTriggers(source: DatabaseClient, schema: string): Promise<boolean> {
  const [{ count }] = await rowsOf(source, triggerCount('$1', '$2'), [triggerName(schema), [...copiedTables]])
  return count === HOME_TABLES.length
}

/** Runs work on the schemas of home and of a cell in one transaction. */
async function inBothSchemas<T>(
  source: DatabaseClient,
  schema: string,
  begin: string,
  work: (home: Side, cell: Side) => Promise<T>,
): Promise<T> {
  const homeSchema = await schemaOf(source)
  const sideOf = (name: string): Side => ({
    client: source,
    enter: () => source.query(`select set_config('search_path', $1, true)`, [name]),
  })
  return inTransactionOf(source, () => work(sideOf(homeSchema), sideOf(schema)), { begin })
}

/** Tables whose copies in a schema of the database of home differ. */
const differencesByTriggers = async (source: DatabaseClient, schema: string): Promise<string[]> =>
  (await inBothSchemas(source, schema, 'begin isolation level repeatable read read only', (home, cell) =>
    findDifferences(home, cell),
  )) ?? []

async function copyByTriggers(home: Services, source: DatabaseClient, schema: string, cell: Target): Promise<void> {
  if (schema === (await schemaOf(source)))
    throw new CopiesNotPossibleError('The cell has the database and the schema of home')
  if (await hasTriggers(source, schema)) {
    const tables = await differencesByTriggers(source, schema)
    if (tables.length === 0) return
    logDifferences(home, cell, tables)
  }
  await inBothSchemas(source, schema, 'begin', async (from, to) => {
    await dropTriggers(source, schema)
    for (const { table, ...rest } of HOME_TABLES as readonly HomeTable[]) {
      const filter = rest.unbound ? `, 'unbound'` : ''
      // Its lock lets no change pass between the copy of the rows and the first copied change.
      await source.query(`create trigger ${triggerName(schema)} after insert or update or delete on ${table}
        for each row execute function copy_row('${schema}'${filter})`)
    }
    await copyRows(from, to)
  })
}

/** Begin of the names of the slots of a deployment: a server may have several, also in one database. */
const SLOT_PREFIX = `'muster_' || (select oid from pg_database where datname = current_database()) || '_'
  || current_schema()::regnamespace::oid || '_'`

/** Name of the slot at home, and of the subscription in the cell. */
async function slotName(source: DatabaseClient, { name }: Pick<Target, 'name'>): Promise<string> {
  const [{ slot }] = await rowsOf(source, `select ${SLOT_PREFIX} || replace($1, '-', '_') as slot`, [name])
  return slot
}

/** Returns the name of the publication of home. */
export const publicationOf = async (source: DatabaseClient): Promise<string> => `muster_${await schemaOf(source)}`

/** Drops the subscriptions of a cell, including those to a home that was restored elsewhere. */
export async function dropSubscriptions(target: DatabaseClient, publication: string): Promise<void> {
  for (const { name } of await subscriptionsTo(target, publication)) await dropSubscription(target, name)
}

/** Lists the subscriptions of a cell to a publication of home. */
export const subscriptionsTo = (
  target: DatabaseClient,
  publication: string,
): Promise<{ name: string; enabled: boolean }[]> =>
  rowsOf(
    target,
    `select subname as name, subenabled as enabled from pg_subscription
     where $1 = any (subpublications) and subdbid = (select oid from pg_database where datname = current_database())`,
    [publication],
  )

/** Time that a cell has to replay the commits at home; a subscription connects again every five seconds. */
const CATCH_UP_MS = 10_000
const CATCH_UP_POLL_MS = 100

/**
 * Waits until a cell has replayed the commits at home. False if it still replays then; true if it has replayed nothing meanwhile,
 * as its subscription fails or does not reach home.
 */
async function catchesUp(source: DatabaseClient, slot: string): Promise<boolean> {
  const lsn = await flushedPosition(source)
  const limits = { withinMs: CATCH_UP_MS, pauseMs: CATCH_UP_POLL_MS }
  return (await untilReplayed(source, slot, { lsn, ...limits })) !== 'progressing'
}

const REPLAY_MS = 30_000

/**
 * Waits until a cell has replayed the commits at home, false if it has not after thirty seconds. A cell in the database of home has
 * them with the commit.
 */
export const untilReplayedHome = (
  home: Pick<Services, 'config'>,
  { name, number }: CellIdentity,
  url: string,
): Promise<boolean> =>
  withoutTenant(() =>
    atHome(home, async source => {
      if (number === 0 || (await hasTriggers(source, schemaOfUrl(url)))) return true
      const slot = await slotName(source, { name })
      const lsn = await flushedPosition(source)
      const limits = { withinMs: REPLAY_MS, pauseMs: CATCH_UP_POLL_MS }
      return (await untilReplayed(source, slot, { lsn, ...limits })) === 'replayed'
    }),
  )

const sideOf = (client: DatabaseClient): Side => ({ client, enter: async () => {} })

/** Tables whose copies in another database differ; null if the cell still replays commits. */
const differencesByReplication = (
  source: DatabaseClient,
  target: DatabaseClient,
  slot: string,
): Promise<string[] | null> => findDifferences(sideOf(source), sideOf(target), () => catchesUp(source, slot))

/** Requires that home can publish its rows, and that the cell has the tables under the same names. */
async function requireReplication(source: DatabaseClient, target: DatabaseClient): Promise<void> {
  const settings = `select current_setting('wal_level') as wal_level, current_setting('server_version_num')::int as version`
  const [{ wal_level }] = await rowsOf(source, settings)
  if (wal_level !== 'logical')
    throw new CopiesNotPossibleError(
      `The server of home has wal_level = ${wal_level}; a cell in another database requires wal_level = logical`,
    )
  const [here, there] = [await schemaOf(source), await schemaOf(target)]
  if (here !== there)
    throw new CopiesNotPossibleError(
      `The cell is in the schema ${there} of another database; logical replication requires the schema of home, ${here}`,
    )
}

/** Creates the publication of home, or adds tables of a later release. Returns its name, and whether it is unchanged. */
async function preparePublication(source: DatabaseClient): Promise<{ publication: string; isUnchanged: boolean }> {
  const publication = await publicationOf(source)
  const published = await rowsOf(source, 'select tablename from pg_publication_tables where pubname = $1', [
    publication,
  ])
  const isUnchanged =
    published.length === HOME_TABLES.length && published.every(({ tablename }) => copiedTables.has(tablename))
  if (!isUnchanged) {
    const [exists] = await rowsOf(source, 'select 1 from pg_publication where pubname = $1', [publication])
    const tables = (HOME_TABLES as readonly HomeTable[])
      .map(({ table, unbound }) => (unbound ? `${table} where (project_id is null)` : table))
      .join(', ')
    await source.query(
      exists
        ? `alter publication ${publication} set table ${tables}`
        : `create publication ${publication} for table ${tables}`,
    )
  }
  return { publication, isUnchanged }
}

async function copyByReplication(
  home: Services,
  source: DatabaseClient,
  target: DatabaseClient,
  cell: Target,
): Promise<void> {
  await requireReplication(source, target)
  const { publication, isUnchanged } = await preparePublication(source)
  const slot = await slotName(source, cell)
  const connection = quoted(withoutSchema(home.config.DATABASE_LISTEN_URL))
  const usable = isUnchanged ? await usableSlot(source, slot) : null
  const subscriptions = await subscriptionsTo(target, publication)
  if (usable && subscriptions.length === 1 && subscriptions[0].name === slot && subscriptions[0].enabled) {
    // Home may have another address or password than the subscription.
    if (!usable.active) await target.query(`alter subscription ${slot} connection ${connection}`)
    const tables = await differencesByReplication(source, target, slot)
    if (!tables?.length) return
    logDifferences(home, cell, tables)
  }
  await dropSubscriptions(target, publication)
  await dropSlot(source, slot)
  const replication = await connect(home.config.DATABASE_LISTEN_URL, { replication: 'database' })
  try {
    // The changes of the slot begin where the exported snapshot ends. A subscription in the same server cannot create its slot.
    const created = await replication.query(`CREATE_REPLICATION_SLOT "${slot}" LOGICAL pgoutput EXPORT_SNAPSHOT`)
    const [{ snapshot_name }] = created.rows
    await inTransactionOf(
      source,
      async () => {
        await source.query(`set transaction snapshot '${snapshot_name}'`)
        await inTransactionOf(target, () => copyRows(sideOf(source), sideOf(target)))
      },
      { begin: 'begin isolation level repeatable read read only' },
    )
    await target.query(`create subscription ${slot} connection ${connection}
      publication ${publication} with (create_slot = false, slot_name = '${slot}', copy_data = false)`)
  } catch (error) {
    await dropSlot(source, slot)
    throw error
  } finally {
    await replication.end()
  }
}

/** How rows of home are copied to a cell. */
export const COPY_METHODS = ['triggers', 'replication'] as const

/** State of the copies of a cell, for people. */
export type CopiesState = {
  /** How rows are copied; null if they are not. */
  by: (typeof COPY_METHODS)[number] | null
  /** Bytes of the log at home that the cell has not replayed; null for triggers. */
  lag_bytes: number | null
  /** Tables whose copies differ from home, without changes on the way. */
  differing: string[]
  /** Faults, as sentences. */
  problems: string[]
}

/** Returns the state of the copies of a cell. */
export const copiesState = (home: Pick<Services, 'config'>, cell: Target): Promise<CopiesState> =>
  withoutTenant(() =>
    atHome(home, async source => {
      const schema = schemaOfUrl(cell.url)
      if (await hasTriggers(source, schema)) {
        const differing = await differencesByTriggers(source, schema)
        return { by: 'triggers', lag_bytes: null, differing, problems: differenceProblems(cell, differing) }
      }
      const name = await slotName(source, cell)
      const [slot] = await rowsOf(
        source,
        `select active, wal_status, (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::float8 as lag_bytes,
           current_setting('max_slot_wal_keep_size') as kept
         from pg_replication_slots where slot_name = $1`,
        [name],
      )
      if (!slot) {
        const problems = [`Rows of home are not copied to the cell ${cell.name}`]
        return { by: null, lag_bytes: null, differing: [], problems }
      }
      const target = await connect(cell.url)
      const differing = await differencesByReplication(source, target, name).finally(() => target.end())
      const problems = differenceProblems(cell, differing ?? [])
      if (slot.wal_status === 'lost')
        problems.push(`Home has removed the log that the copies of the cell ${cell.name} need`)
      else if (!slot.active) problems.push(`The cell ${cell.name} is not connected to home`)
      if (slot.kept === '-1')
        problems.push('max_slot_wal_keep_size is not set at home: a cell that is down could fill its disk')
      return { by: 'replication', lag_bytes: slot.lag_bytes, differing: differing ?? [], problems }
    }),
  )

const differenceProblems = ({ name }: Target, tables: readonly string[]): string[] =>
  tables.length > 0 ? [`Rows of ${tables.join(', ')} in the cell ${name} differ from home`] : []

const CopiesFacts = z.strictObject({
  copies: z.enum(COPY_METHODS).nullable(),
  copies_connected: z.boolean().nullable(),
  lag_bytes: z.int().nullable(),
  lag_seconds: z.number().nullable(),
})

/** The copies of a cell as home sees them; all null if home does not copy to it. By triggers, only `copies` is not null. */
export type CopiesFacts = z.output<typeof CopiesFacts>

/** Facts of a cell without copies. */
export const NO_COPIES: CopiesFacts = { copies: null, copies_connected: null, lag_bytes: null, lag_seconds: null }

const copiesRow = sql.type(CopiesFacts.extend({ name: z.string() }))

const tableNames = `'{${[...copiedTables].join()}}'::text[]`

/**
 * Returns the copies of cells by their names, read at home only. The seconds are the delay of the last commit that the cell has replayed, or
 * since its last message or connection: a home of PostgreSQL 15 or 16 does not have the time of the connection.
 */
export async function readCopies(
  { pool }: Pick<Services, 'pool'>,
  cells: readonly { name: string; url: string | null }[],
): Promise<ReadonlyMap<string, CopiesFacts>> {
  const names = cells.map(({ name }) => name)
  const triggers = cells.map(({ url }) => (url === null ? '' : triggerName(schemaOfUrl(url))))
  const rows = await pool.any(copiesRow`
    select n.name,
      case when t.count = ${copiedTables.size} then 'triggers' when s.slot_name is not null then 'replication' end as copies,
      s.active as copies_connected, b.lag_bytes,
      round(extract(epoch from case
        when b.lag_bytes = 0 then interval '0'
        when s.active then greatest(r.replay_lag, clock_timestamp() - r.reply_time)
        else clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz
      end), 3)::float8 as lag_seconds
    from unnest(${sql.array(names, 'text')}, ${sql.array(triggers, 'text')}) n (name, trigger_name)
    cross join lateral ${rawFragment(triggerCount('n.trigger_name', tableNames))} t
    left join pg_replication_slots s on s.slot_name = ${rawFragment(SLOT_PREFIX)} || replace(n.name, '-', '_')
    left join pg_stat_replication r on r.pid = s.active_pid
    cross join lateral (select case when s.slot_name is not null then greatest(0,
      pg_current_wal_flush_lsn() - greatest(s.confirmed_flush_lsn, r.replay_lsn))::bigint end as lag_bytes) b`)
  return new Map(rows.map(({ name, ...facts }) => [name, facts]))
}

const BARRIER_MS = 1000
const FIRST_POLL_MS = 5

/** Time after which a slot that does not move is not waited for. */
const STUCK_MS = 3000

const lsnRow = sql.type(z.strictObject({ lsn: z.string() }))
const SlotRow = z.strictObject({ name: z.string(), position: z.string().nullable(), replayed: z.boolean() })

/** Positions of slots at the end of vain waits, and the time of the first at the position. */
const vainWaits = processSingleton(() => new Map<string, { position: string | null; since: number }>())

/**
 * Waits until the cells have replayed the commits at home, for a second at most; false if one has not. A cell in the database
 * of home has it with the commit. A cell that is known to replay nothing is not waited for.
 */
export const untilCopied = (cells: Cells): Promise<boolean> =>
  withoutTenant(async () => {
    const { home } = cells
    const others = cells.all().filter(({ number, state }) => number !== 0 && state !== 'down')
    const opened = others.flatMap(({ name, services }) => (services ? { name, services } : []))
    const deadline = performance.now() + BARRIER_MS
    const comparisons = opened.map(({ services }) => isInHomeDatabase(services)(home).catch(() => null))
    const same = await settledWithin(BARRIER_MS, Promise.all(comparisons))
    if (!same) return false
    const names = opened.flatMap(({ name }, index) => (same[index] ? [] : name))
    const hasCopies = names.length === 0 || (await waitForReplay(home, names, deadline - performance.now()))
    return hasCopies && opened.length === others.length
  })

/** Waits until cells with replication have replayed the commits at home. */
async function waitForReplay(home: Services, names: readonly string[], withinMs: number): Promise<boolean> {
  const { lsn } = await home.pool.one(lsnRow`select pg_current_wal_flush_lsn()::text as lsn`)
  const waits = vainWaits(home)
  let awaited: readonly z.output<typeof SlotRow>[] = []
  const replayed = await pollUntil(
    async () => {
      const slots = await home.pool.any(sql.type(SlotRow)`
        select n.name, p.position::text, coalesce(p.position >= ${lsn}::pg_lsn, false) as replayed
        from unnest(${sql.array([...names], 'text')}) n (name)
        left join pg_replication_slots s on s.slot_name = ${rawFragment(SLOT_PREFIX)} || replace(n.name, '-', '_')
        left join pg_stat_replication r on r.pid = s.active_pid,
        greatest(s.confirmed_flush_lsn, r.replay_lsn) p (position)`)
      const late = slots.filter(slot => !slot.replayed)
      if (late.length === 0) return true
      awaited = late.filter(({ name, position }) => {
        const wait = waits.get(name)
        return wait?.position !== position || performance.now() - wait.since < STUCK_MS
      })
      return awaited.length === 0 ? false : null
    },
    { withinMs, pauseMs: FIRST_POLL_MS, doubles: true },
  )
  if (replayed !== null) return replayed
  for (const { name, position } of awaited)
    if (waits.get(name)?.position !== position) waits.set(name, { position, since: performance.now() })
  return false
}
