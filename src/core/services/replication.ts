import { setTimeout as sleep } from 'node:timers/promises'
import { pollUntil } from '../base/poll.ts'
import { withParameters } from '../db/database-url.ts'
import { DatabaseClient, KEEPALIVE_OPTIONS, SESSION_TIMEOUTS } from '../db/pg-client.ts'

/** Sessions, slots and subscriptions of logical replication between the databases of a deployment. */

/** Returns the rows of a statement. */
export const rowsOf = async (client: DatabaseClient, text: string, values: unknown[] = []): Promise<any[]> =>
  (await client.query(text, values)).rows

/** Runs work in a transaction of a session, which `begin` starts. */
export async function inTransactionOf<T>(
  client: DatabaseClient,
  work: () => Promise<T>,
  { begin = 'begin' }: { begin?: string } = {},
): Promise<T> {
  await client.query(begin)
  try {
    const result = await work()
    await client.query('commit')
    return result
  } catch (error) {
    await client.query('rollback').catch(() => {})
    throw error
  }
}

/**
 * Yields the rows of a query in batches, by a cursor in the transaction of a session.
 * @param options.sizeAfter returns the size of the next batch, default `size`
 */
export async function* readBatches(
  client: DatabaseClient,
  { text, values = [] }: { text: string; values?: unknown[] },
  { size, sizeAfter = () => size }: { size: number; sizeAfter?: (rows: readonly any[], size: number) => number },
): AsyncGenerator<any[]> {
  await client.query(`declare batches no scroll cursor for ${text}`, values)
  for (let next = size; ; ) {
    const rows = await rowsOf(client, `fetch ${next} from batches`)
    if (rows.length === 0) break
    next = sizeAfter(rows, next)
    yield rows
  }
  await client.query('close batches')
}

/** Statement that sets the formats of values as text, which must be the same in two databases. */
export const FORMATS = `set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set time zone 'UTC'; set extra_float_digits = 1;
  set bytea_output = 'hex'`

/**
 * Inserts rows that another database has written as text.
 * @param table name for statements
 * @param columns names for statements
 */
export const insertTexts = (
  client: DatabaseClient,
  { table, columns, onConflict = '' }: { table: string; columns: readonly string[]; onConflict?: string },
  lines: readonly string[],
): Promise<unknown> =>
  client.query(
    `insert into ${table} as c (${columns.join(', ')}) overriding system value
     select ${columns.map(name => `(x.r).${name}`).join(', ')} from (
       select line::${table} as r from json_array_elements_text($1::json) as l (line) offset 0) x
     ${onConflict}`,
    [JSON.stringify(lines)],
  )

/** Opens a session of an administrator; names without a schema are in the schema of the URL. */
export async function connect(
  connectionString: string,
  { purpose = 'copies', ...options }: { purpose?: string; replication?: 'database' } = {},
): Promise<DatabaseClient> {
  // The server ends the session of a host that is lost, which may hold the locks of a cell.
  const { idle_in_transaction_session_timeout } = SESSION_TIMEOUTS
  const client = new DatabaseClient({
    connectionString: withParameters(connectionString, { options: KEEPALIVE_OPTIONS }),
    application_name: `muster ${purpose}`,
    ...(options.replication ? options : { idle_in_transaction_session_timeout }),
  } as never)
  client.on('error', () => {})
  await client.connect()
  return client
}

/** Returns the schema of the tables of a session. */
export const schemaOf = async (client: DatabaseClient): Promise<string> =>
  (await rowsOf(client, 'select current_schema() as name'))[0].name

/** Condition that a session of the same database has the lock of number $1. */
export const isSameDatabase = `
  exists (select from pg_locks
    where locktype = 'advisory' and objsubid = 1 and ((classid::bigint << 32) | objid::bigint) = $1::bigint
      and database = (select oid from pg_database where datname = current_database()))`

/** Whether two sessions are of one database of a server. */
export async function areInOneDatabase(one: DatabaseClient, other: DatabaseClient): Promise<boolean> {
  const [{ same }] = await rowsOf(other, `select ${isSameDatabase} as same`, [await lockOf(one)])
  return same
}

/** Takes a lock that sessions of the same database see, and returns its number. */
async function lockOf(client: DatabaseClient): Promise<string> {
  const [{ key }] = await rowsOf(
    client,
    'select key::text, pg_advisory_lock(key) from (select (random() * 9e18)::bigint as key offset 0) k',
  )
  return key
}

/** Drops a subscription without its slot. */
export async function dropSubscription(client: DatabaseClient, name: string): Promise<void> {
  await client.query(`alter subscription ${name} disable`)
  await client.query(`alter subscription ${name} set (slot_name = none)`)
  await client.query(`drop subscription ${name}`)
}

/** Drops a slot, whose connection is ended. */
export async function dropSlot(source: DatabaseClient, name: string): Promise<void> {
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

/** Returns a slot; null if it does not exist, or has lost changes. */
export async function usableSlot(source: DatabaseClient, name: string): Promise<{ active: boolean } | null> {
  const [slot] = await rowsOf(source, 'select active, wal_status from pg_replication_slots where slot_name = $1', [
    name,
  ])
  return slot === undefined || slot.wal_status === 'lost' ? null : slot
}

/** Returns the position up to which the log of a server is flushed. */
export const flushedPosition = async (source: DatabaseClient): Promise<string> =>
  (await rowsOf(source, 'select pg_current_wal_flush_lsn()::text as lsn'))[0].lsn

/**
 * Waits until the subscriber of a slot has replayed a position of the log.
 * @param options.isFlushed whether it has the changes on its disk
 * @param options.onPoll is called before each poll
 * @returns `replayed`, or after the time `progressing`, or `stuck` if it has replayed nothing meanwhile
 */
export async function untilReplayed(
  source: DatabaseClient,
  slot: string,
  {
    lsn,
    isFlushed = false,
    onPoll = async () => {},
    ...limits
  }: { lsn: string; withinMs: number; pauseMs: number; isFlushed?: boolean; onPoll?: () => Promise<void> },
): Promise<'replayed' | 'progressing' | 'stuck'> {
  let first: string | undefined
  let last: string | undefined
  const replayed = await pollUntil(async () => {
    await onPoll()
    const [row] = await rowsOf(
      source,
      `select p.position::text, coalesce(p.position >= $2::pg_lsn, false) as is_replayed
       from pg_replication_slots s left join pg_stat_replication r on r.pid = s.active_pid,
       greatest(s.confirmed_flush_lsn${isFlushed ? '' : ', r.replay_lsn'}) p (position)
       where slot_name = $1`,
      [slot, lsn],
    )
    last = row?.position
    first ??= last
    return row?.is_replayed ? true : null
  }, limits)
  if (replayed) return 'replayed'
  return first === last ? 'stuck' : 'progressing'
}

/** Quotes a value of a statement. */
export const quoted = (text: string): string => `'${text.replaceAll("'", "''")}'`

/** Returns the URL for libpq, which refuses the parameter of the schema. */
export function withoutSchema(databaseUrl: string): string {
  const [server, query = ''] = databaseUrl.split('?')
  const parameters = new URLSearchParams(query)
  parameters.delete('schema')
  return parameters.size > 0 ? `${server}?${parameters}` : server
}
