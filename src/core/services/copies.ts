import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { CellIdentity } from '../base/current-cell.ts'
import { settledWithin } from '../base/event-loop.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { parseDatabaseUrl } from '../db/database-url.ts'
import { DatabaseClient } from '../db/pg-client.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { isolateFailures } from '../work/sweeps.ts'
import { type Cells, readCells, sealedForCell, unavailable } from './cells.ts'
import { copyRows, HOME_TABLES, type HomeTable, rowsOf } from './copied-rows.ts'

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
 * `read` leaves out. Raises CELL_UNAVAILABLE if a cell does not answer, unless the result may be partial.
 */
export async function readEverywhere<T>(
  { cell, cells }: Pick<Services, 'cell' | 'cells'>,
  db: Queryable,
  read: (db: Queryable, isHome: boolean) => Promise<T>,
  { partial = false } = {},
): Promise<T[]> {
  const others = cells && cell?.number === 0 ? cells.all().filter(({ number }) => number !== 0) : []
  const readThere = async ({ number, name }: CellIdentity): Promise<T[]> => {
    try {
      return [await read((cells as Cells).numbered(number).pool, false)]
    } catch (error) {
      if (partial) return []
      throw unavailable({ name }, error)
    }
  }
  // Not concurrently: a failure in a cell would end the transaction of `db` while its statement runs.
  const there = await Promise.all(others.map(readThere))
  return [await read(db, true), ...there.flat()]
}

/** Thrown if rows cannot be copied to a cell; the message says what must be changed. */
export class CopiesNotPossibleError extends Error {}

type Target = { name: string; number: number; url: string }

const isSameDatabase = `
  exists (select from pg_locks
    where locktype = 'advisory' and objsubid = 1 and ((classid::bigint << 32) | objid::bigint) = $1::bigint
      and database = (select oid from pg_database where datname = current_database()))`

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

const rawFragment = (text: string): Fragment => Object.freeze({ ...sql.fragment``, sql: text })

const rawSame = (presence: string): Fragment => rawFragment(isSameDatabase.replace('$1', `(${presence})`))

/** Session of an administrator; names without a schema are in the schema of the URL. */
async function connect(connectionString: string, options: { replication?: 'database' } = {}): Promise<DatabaseClient> {
  const client = new DatabaseClient({ connectionString, application_name: 'muster copies', ...options } as never)
  client.on('error', () => {})
  await client.connect()
  return client
}

const schemaOf = async (client: DatabaseClient): Promise<string> =>
  (await rowsOf(client, 'select current_schema() as name'))[0].name

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
const changingCopies = <T>(home: Services, work: (client: DatabaseClient) => Promise<T>): Promise<T> =>
  atHome(home, async client => {
    await client.query(`select pg_advisory_lock(hashtext('muster copies'))`)
    return work(client)
  })

/**
 * Starts copying the rows of home to a cell, which has been migrated, with all rows so far. Does nothing if they are being copied;
 * copies without the log that they need are started again.
 * @throws CopiesNotPossibleError
 */
export const startCopies = (home: Services, cell: Target): Promise<void> =>
  withoutTenant(() =>
    changingCopies(home, async source => {
      const target = await connect(cell.url)
      try {
        const [{ same }] = await rowsOf(target, `select ${isSameDatabase} as same`, [await lockOf(source)])
        if (same) await copyByTriggers(source, await schemaOf(target))
        else await copyByReplication(home, source, target, cell)
      } finally {
        await target.end()
      }
    }),
  )

/** Takes a lock that sessions of the same database see, and returns its number. */
async function lockOf(client: DatabaseClient): Promise<string> {
  const [{ key }] = await rowsOf(
    client,
    'select key::text, pg_advisory_lock(key) from (select (random() * 9e18)::bigint as key offset 0) k',
  )
  return key
}

/** Stops copying the rows of home to a cell. Without an answer of the cell, its subscription remains there. */
export const stopCopies = (home: Services, cell: Target): Promise<void> =>
  withoutTenant(() =>
    changingCopies(home, async source => {
      const { schema } = parseDatabaseUrl(cell.url)
      if (schema !== null) await dropTriggers(source, schema)
      const slot = await slotName(source, cell)
      const target = await connect(cell.url).catch(() => null)
      try {
        if (target) await dropSubscription(target, slot)
      } finally {
        await target?.end()
      }
      await dropSlot(source, slot)
    }),
  )

/** Starts copies again that lack a part of the log, or that were stopped by a failed start. A sweep. */
export async function repairCopies(home: Services): Promise<number> {
  if (!home.cells || home.cell?.number !== 0) return 0
  for (const { name, number, url, state } of await readCells(home)) {
    const plain = home.secrets.open(url, sealedForCell(name))
    if (plain.ok && state !== 'down' && state !== 'moving')
      await isolateFailures(home, { cell: name }, () => startCopies(home, { name, number, url: plain.value }))
  }
  return 0
}

const triggerName = (schema: string): string => `copy_to_${schema}`

async function dropTriggers(client: DatabaseClient, schema: string): Promise<void> {
  for (const { table } of HOME_TABLES) await client.query(`drop trigger if exists ${triggerName(schema)} on ${table}`)
}

async function copyByTriggers(source: DatabaseClient, schema: string): Promise<void> {
  const homeSchema = await schemaOf(source)
  if (schema === homeSchema) throw new CopiesNotPossibleError('The cell has the database and the schema of home')
  const [{ count }] = await rowsOf(
    source,
    'select count(*)::int as count from pg_trigger where tgname = $1 and tgrelid::regclass::text = any ($2)',
    [triggerName(schema), [...copiedTables]],
  )
  if (count === HOME_TABLES.length) return
  await source.query('begin')
  try {
    await dropTriggers(source, schema)
    for (const { table, ...rest } of HOME_TABLES as readonly HomeTable[]) {
      const filter = rest.unbound ? `, 'unbound'` : ''
      // Its lock lets no change pass between the copy of the rows and the first copied change.
      await source.query(`create trigger ${triggerName(schema)} after insert or update or delete on ${table}
        for each row execute function copy_row('${schema}'${filter})`)
    }
    const inSchema = (name: string) => source.query(`select set_config('search_path', $1, true)`, [name])
    await copyRows(
      { client: source, enter: () => inSchema(homeSchema) },
      { client: source, enter: () => inSchema(schema) },
    )
    await source.query('commit')
  } catch (error) {
    await source.query('rollback').catch(() => {})
    throw error
  }
}

/** Begin of the names of the slots of a deployment: a server may have several, also in one database. */
const SLOT_PREFIX = `'muster_' || (select oid from pg_database where datname = current_database()) || '_'
  || current_schema()::regnamespace::oid || '_'`

/** Name of the slot at home, and of the subscription in the cell. */
async function slotName(source: DatabaseClient, { name }: Pick<Target, 'name'>): Promise<string> {
  const [{ slot }] = await rowsOf(source, `select ${SLOT_PREFIX} || replace($1, '-', '_') as slot`, [name])
  return slot
}

async function dropSubscription(target: DatabaseClient, name: string): Promise<void> {
  if ((await subscriptionOf(target, name)) === null) return
  await target.query(`alter subscription ${name} disable`)
  await target.query(`alter subscription ${name} set (slot_name = none)`)
  await target.query(`drop subscription ${name}`)
}

async function subscriptionOf(target: DatabaseClient, name: string): Promise<{ enabled: boolean } | null> {
  const [row] = await rowsOf(
    target,
    `select subenabled as enabled from pg_subscription
     where subname = $1 and subdbid = (select oid from pg_database where datname = current_database())`,
    [name],
  )
  return row ?? null
}

async function dropSlot(source: DatabaseClient, name: string): Promise<void> {
  for (;;) {
    const [slot] = await rowsOf(source, 'select active_pid from pg_replication_slots where slot_name = $1', [name])
    if (!slot) return
    if (slot.active_pid === null) {
      await source.query('select pg_drop_replication_slot($1)', [name])
      return
    }
    await source.query('select pg_terminate_backend($1)', [slot.active_pid])
    await sleep(50)
  }
}

/** Whether the slot of a cell exists and has all changes that the cell lacks. */
async function isSlotUsable(source: DatabaseClient, name: string): Promise<boolean> {
  const [slot] = await rowsOf(source, 'select wal_status from pg_replication_slots where slot_name = $1', [name])
  return slot !== undefined && slot.wal_status !== 'lost'
}

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
  const publication = `muster_${await schemaOf(source)}`
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
  if (isUnchanged && (await isSlotUsable(source, slot)) && (await subscriptionOf(target, slot))?.enabled) return
  await dropSubscription(target, slot)
  await dropSlot(source, slot)
  const replication = await connect(home.config.DATABASE_LISTEN_URL, { replication: 'database' })
  try {
    // The changes of the slot begin where the exported snapshot ends. A subscription in the same server cannot create its slot.
    const created = await replication.query(`CREATE_REPLICATION_SLOT "${slot}" LOGICAL pgoutput EXPORT_SNAPSHOT`)
    const [{ snapshot_name }] = created.rows
    await source.query('begin isolation level repeatable read read only')
    await source.query(`set transaction snapshot '${snapshot_name}'`)
    await target.query('begin')
    const enter = () => Promise.resolve()
    await copyRows({ client: source, enter }, { client: target, enter })
    await target.query('commit')
    await source.query('commit')
    await target.query(`create subscription ${slot} connection ${quoted(withoutSchema(home.config.DATABASE_LISTEN_URL))}
      publication ${publication} with (create_slot = false, slot_name = '${slot}', copy_data = false)`)
  } catch (error) {
    await Promise.all([source, target].map(client => client.query('rollback').catch(() => {})))
    await dropSlot(source, slot)
    throw error
  } finally {
    await replication.end()
  }
}

const quoted = (text: string): string => `'${text.replaceAll("'", "''")}'`

/** Returns the URL for libpq, which refuses the parameter of the schema. */
function withoutSchema(databaseUrl: string): string {
  const [server, query = ''] = databaseUrl.split('?')
  const parameters = new URLSearchParams(query)
  parameters.delete('schema')
  return parameters.size > 0 ? `${server}?${parameters}` : server
}

/** State of the copies of a cell, for people. */
export type CopiesState = {
  /** How rows are copied; null if they are not. */
  by: 'triggers' | 'replication' | null
  /** Bytes of the log at home that the cell has not replayed; null for triggers. */
  lag_bytes: number | null
  /** Faults, as sentences. */
  problems: string[]
}

/** Returns the state of the copies of a cell. */
export const copiesState = (home: Pick<Services, 'config'>, cell: Target): Promise<CopiesState> =>
  withoutTenant(() =>
    atHome(home, async source => {
      const { schema } = parseDatabaseUrl(cell.url)
      if (schema !== null) {
        const [{ count }] = await rowsOf(source, 'select count(*)::int as count from pg_trigger where tgname = $1', [
          triggerName(schema),
        ])
        if (count === HOME_TABLES.length) return { by: 'triggers', lag_bytes: null, problems: [] }
      }
      const [slot] = await rowsOf(
        source,
        `select active, wal_status, (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::float8 as lag_bytes,
           current_setting('max_slot_wal_keep_size') as kept
         from pg_replication_slots where slot_name = $1`,
        [await slotName(source, cell)],
      )
      if (!slot)
        return { by: null, lag_bytes: null, problems: [`Rows of home are not copied to the cell ${cell.name}`] }
      const problems: string[] = []
      if (slot.wal_status === 'lost')
        problems.push(`Home has removed the log that the copies of the cell ${cell.name} need`)
      else if (!slot.active) problems.push(`The cell ${cell.name} is not connected to home`)
      if (slot.kept === '-1')
        problems.push('max_slot_wal_keep_size is not set at home: a cell that is down could fill its disk')
      return { by: 'replication', lag_bytes: slot.lag_bytes, problems }
    }),
  )

const lagRow = sql.type(z.strictObject({ name: z.string(), lag_bytes: z.int() }))

/** Returns the bytes of the log at home that cells have not replayed, by their names; without those in the database of home. */
export async function copyLags({ pool }: Pick<Services, 'pool'>): Promise<ReadonlyMap<string, number>> {
  const rows = await pool.any(lagRow`
    select replace(substr(s.slot_name::text, length(d.prefix) + 1), '_', '-') as name,
      (pg_current_wal_flush_lsn() - s.confirmed_flush_lsn)::bigint as lag_bytes
    from (select ${rawFragment(SLOT_PREFIX)} as prefix) d
    join pg_replication_slots s on starts_with(s.slot_name::text, d.prefix) and s.confirmed_flush_lsn is not null`)
  return new Map(rows.map(({ name, lag_bytes }) => [name, lag_bytes]))
}

const BARRIER_MS = 1000
const FIRST_POLL_MS = 5

/** Time after which a slot that does not move is not waited for. */
const STUCK_MS = 3000

const lsnRow = sql.type(z.strictObject({ lsn: z.string() }))
const slotRow = sql.type(z.strictObject({ name: z.string(), position: z.string().nullable(), replayed: z.boolean() }))

/** Positions of slots at the end of vain waits, and the time of the first at the position. */
const vainWaits = processSingleton(() => new Map<string, { position: string | null; since: number }>())

/**
 * Waits until the cells have replayed the commits at home, for a second at most; false if one has not. A cell in the database
 * of home has it with the commit. A cell that is known to replay nothing is not waited for.
 */
export const untilCopied = (cells: Cells): Promise<boolean> => withoutTenant(() => untilReplayed(cells))

async function untilReplayed(cells: Cells): Promise<boolean> {
  const { home } = cells
  const others = cells.all().filter(({ number, state }) => number !== 0 && state !== 'down')
  const opened = others.flatMap(({ name, services }) => (services ? { name, services } : []))
  const deadline = performance.now() + BARRIER_MS
  const comparisons = opened.map(({ services }) => isInHomeDatabase(services)(home).catch(() => null))
  const same = await settledWithin(BARRIER_MS, Promise.all(comparisons))
  if (!same) return false
  const names = opened.flatMap(({ name }, index) => (same[index] ? [] : name))
  const isOpen = opened.length === others.length
  if (names.length === 0) return isOpen
  const { lsn } = await home.pool.one(lsnRow`select pg_current_wal_flush_lsn()::text as lsn`)
  const waits = vainWaits(home)
  for (let pause = FIRST_POLL_MS; ; pause *= 2) {
    const slots = await home.pool.any(slotRow`
      select n.name, p.position::text, coalesce(p.position >= ${lsn}::pg_lsn, false) as replayed
      from unnest(${sql.array(names, 'text')}) n (name)
      left join pg_replication_slots s on s.slot_name = ${rawFragment(SLOT_PREFIX)} || replace(n.name, '-', '_')
      left join pg_stat_replication r on r.pid = s.active_pid,
      greatest(s.confirmed_flush_lsn, r.replay_lsn) p (position)`)
    const behind = slots.filter(({ replayed }) => !replayed)
    if (behind.length === 0) return isOpen
    const now = performance.now()
    const moving = behind.filter(({ name, position }) => {
      const wait = waits.get(name)
      return wait?.position !== position || now - wait.since < STUCK_MS
    })
    if (moving.length === 0) return false
    if (now >= deadline) {
      for (const { name, position } of moving)
        if (waits.get(name)?.position !== position) waits.set(name, { position, since: now })
      return false
    }
    await sleep(Math.min(pause, deadline - now))
  }
}
