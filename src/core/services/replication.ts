import { setTimeout as sleep } from 'node:timers/promises'
import { withParameters } from '../db/database-url.ts'
import { DatabaseClient, KEEPALIVE_OPTIONS, SESSION_TIMEOUTS } from '../db/pg-client.ts'

/** Sessions, slots and subscriptions of logical replication between the databases of a deployment. */

/** Returns the rows of a statement. */
export const rowsOf = async (client: DatabaseClient, text: string, values: unknown[] = []): Promise<any[]> =>
  (await client.query(text, values)).rows

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

/** Quotes a value of a statement. */
export const quoted = (text: string): string => `'${text.replaceAll("'", "''")}'`

/** Returns the URL for libpq, which refuses the parameter of the schema. */
export function withoutSchema(databaseUrl: string): string {
  const [server, query = ''] = databaseUrl.split('?')
  const parameters = new URLSearchParams(query)
  parameters.delete('schema')
  return parameters.size > 0 ? `${server}?${parameters}` : server
}
