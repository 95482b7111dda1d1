import { randomBytes, randomUUID } from 'node:crypto'
import pg from 'pg'
import { type Config, ConfigError } from '../base/config.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { sqlStateOf } from './database-errors.ts'
import { parseDatabaseUrl } from './database-url.ts'
import { DatabaseClient, hasFaultyPruning } from './pg-client.ts'
import { sessionSettings } from './pool.ts'

/** SQLSTATEs of a missing prepared statement and of a duplicate one. */
export const LOST_STATEMENT = ['26000', '42P05']
const PROTOCOL_VIOLATION = '08P01'

const WAIT_MS = 10_000

const NO_SESSION =
  'no session of the server is free within 10 s: with a pooler, default_pool_size must cover the connections of all processes'
const REFUSED = 'set ignore_startup_parameters = options,statement_timeout,idle_in_transaction_session_timeout'
const PREPARED =
  'prepared statements are lost between transactions: with a pooler, use session mode, or PgBouncer 1.21 with max_prepared_statements'
const NOT_NOTIFIED = 'notifications do not arrive: with a pooler, set DATABASE_LISTEN_URL to the address of the server'

const PROBE = { name: 'muster_probe', text: 'select pg_backend_pid() as pid' }

/**
 * Checks what a pooler may break: startup parameters, settings of the session, a pool that is large enough, prepared
 * statements that survive a transaction, and notifications.
 * @throws ConfigError with the setting to change
 */
export async function requireConnections(config: Pick<Config, 'DATABASE_URL' | 'DATABASE_LISTEN_URL'>): Promise<void> {
  const open: DatabaseClient[] = []
  const connect = async (options: pg.ClientConfig) => {
    const client = new DatabaseClient({
      connectionTimeoutMillis: 5000,
      query_timeout: WAIT_MS,
      application_name: 'muster check',
      ...options,
    })
    client.on('error', () => {})
    open.push(client)
    await client.connect()
    return client
  }
  try {
    const first = await connect(sessionSettings(config.DATABASE_URL))
    await requireSettings(first, parseDatabaseUrl(config.DATABASE_URL).schema)
    const second = await connect(sessionSettings(config.DATABASE_URL))
    await requireNoPruning(first, second)
    if (!(await arePreparedStatementsKept(first, second))) throw new ConfigError('DATABASE_URL', PREPARED)
    const listener = await connect({ connectionString: config.DATABASE_LISTEN_URL })
    if (!(await isNotified(listener, first))) throw new ConfigError('DATABASE_LISTEN_URL', NOT_NOTIFIED)
  } catch (error) {
    throw poolerProblem(error) ?? error
  } finally {
    for (const client of open) client.destroy()
  }
}

/** Returns the setting to change if a pooler refuses connections or has no session for them, null for other errors. */
export function poolerProblem(error: unknown): ConfigError | null {
  const { message } = error as Error
  if (sqlStateOf(error) === PROTOCOL_VIOLATION && /startup parameter/.test(message))
    return new ConfigError('DATABASE_URL', `the pooler answers "${message}": ${REFUSED}`)
  const hasNoSession = message === 'Query read timeout' || /query_wait_timeout|no more connections/.test(message)
  return hasNoSession ? new ConfigError('DATABASE_URL', NO_SESSION) : null
}

type RequiredSetting = { value: string; accepts: (value: string) => boolean }

/** Settings of a session that a pooler may drop, with the value to set for the role and whether a value will do. */
const SETTINGS: Record<string, RequiredSetting> = {
  timezone: { value: 'UTC', accepts: value => ['UTC', 'Etc/UTC'].includes(value) },
  statement_timeout: { value: '60s', accepts: value => value !== '0' },
  idle_in_transaction_session_timeout: { value: '60s', accepts: value => value !== '0' },
}

/** @throws ConfigError if the session lacks a setting, or is not in the schema of the cell */
async function requireSettings(client: DatabaseClient, schema: string | null): Promise<void> {
  const required: Record<string, RequiredSetting> = { ...SETTINGS }
  if (schema !== null) required.search_path = { value: schema, accepts: value => value === schema }
  const names = Object.keys(required)
  const { rows } = await client.query(`select ${names.map(name => `current_setting('${name}') as ${name}`).join(', ')}`)
  const dropped = names.filter(name => !required[name].accepts(rows[0][name]))
  if (dropped.length > 0)
    throw droppedError(
      client,
      dropped.map(name => [name, required[name].value]),
    )
}

const droppedError = (
  { user }: DatabaseClient,
  dropped: readonly (readonly [name: string, value: string])[],
): ConfigError => {
  const fixes = dropped.map(([name, value]) => `alter role ${user} set ${name} to '${value}'`)
  const names = dropped.map(([name]) => name).join(', ')
  return new ConfigError(
    'DATABASE_URL',
    `the pooler drops ${names}: ${fixes.join('; ')}; then RECONNECT in the console of the pooler, whose open connections keep the previous settings`,
  )
}

/**
 * Requires that pruning is off in all sessions of the role, where a pooler executes later statements in other sessions than the one
 * that the client has set.
 * @param second a client with an open transaction, which keeps a pooler from giving its session to the next statement of `first`
 */
async function requireNoPruning(first: DatabaseClient, second: DatabaseClient): Promise<void> {
  const facts = `
    select pg_backend_pid() as session, current_setting('server_version') as version, reset_val as pruning
    from pg_settings where name = 'enable_partition_pruning'`
  const before = (await first.query(facts)).rows[0]
  await second.query('begin')
  await second.query('select')
  const after = (await first.query(facts)).rows[0]
  await second.query('commit')
  const isShared = before.session !== after.session
  if (isShared && hasFaultyPruning(after.version) && after.pruning !== 'off')
    throw droppedError(first, [['enable_partition_pruning', 'off']])
}

/** Whether each client keeps its prepared statements to itself, whatever sessions a pooler assigns. */
async function arePreparedStatementsKept(first: pg.Client, second: pg.Client): Promise<boolean> {
  try {
    await first.query(PROBE)
    // The open transaction keeps a pooler from giving this session to the first client's next statement.
    await second.query('begin')
    await second.query(PROBE)
    await first.query(PROBE)
    return true
  } catch (error) {
    if (LOST_STATEMENT.includes(sqlStateOf(error) ?? '')) return false
    throw error
  }
}

async function isNotified(listener: pg.Client, sender: pg.Client): Promise<boolean> {
  const channel = `muster_check_${randomUUID()}`
  const notified = new Promise<boolean>(resolve => {
    const timer = setTimeout(() => resolve(false), WAIT_MS)
    listener.on('notification', () => {
      clearTimeout(timer)
      resolve(true)
    })
  })
  await listener.query(`listen ${pg.escapeIdentifier(channel)}`)
  await sender.query(`select pg_notify($1, '')`, [channel])
  return notified
}

/** How long one received notification proves that the connection works. */
const TRUST_MS = 15_000

/** Resolves once this process has received a notification that it sent to itself. */
export const notificationCheck = processSingleton(({ notifications, notifier }: Services) => {
  const channel = `muster_self_${randomBytes(8).toString('hex')}`
  let notifiedAt = Number.NEGATIVE_INFINITY
  const waiters: (() => void)[] = []
  const { ready } = notifications.listen(channel, () => {
    notifiedAt = performance.now()
    for (const resolve of waiters.splice(0)) resolve()
  })
  return async (): Promise<void> => {
    if (performance.now() - notifiedAt < TRUST_MS) return
    await ready
    const notified = new Promise<void>(resolve => waiters.push(resolve))
    notifier.notify({ channel, payload: '' })
    await notified
  }
})
