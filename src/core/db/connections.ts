import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { type Config, ConfigError } from '../../config.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Services } from '../process/services.ts'
import { sqlStateOf } from './database-errors.ts'
import { destroyConnection } from './notify.ts'
import { sessionSettings } from './pool.ts'

/** SQLSTATE of a prepared statement that is not there, and of one that is there already. */
export const LOST_STATEMENT = ['26000', '42P05']
const PROTOCOL_VIOLATION = '08P01'

const WAIT_MS = 10_000

const REFUSED = 'set ignore_startup_parameters = options,statement_timeout,idle_in_transaction_session_timeout'
const PREPARED =
  'prepared statements do not hold: behind a pooler use session mode, or PgBouncer 1.21 with max_prepared_statements'
const UNHEARD = 'notifications do not arrive: behind a pooler set DATABASE_LISTEN_URL to the server itself'

const PROBE = { name: 'muster_probe', text: 'select pg_backend_pid() as pid' }

/**
 * Checks that connections keep what the service relies on, which a pooler between it and the server may not: the parameters that
 * they are opened with, prepared statements from one transaction to the next, and notifications.
 * @throws ConfigError that says what to change
 */
export async function requireConnections(config: Pick<Config, 'DATABASE_URL' | 'DATABASE_LISTEN_URL'>): Promise<void> {
  const open: pg.Client[] = []
  const connect = async (options: pg.ClientConfig) => {
    const client = new pg.Client({
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
    const first = await connect(sessionSettings(config.DATABASE_URL)).catch(error => {
      if (sqlStateOf(error) !== PROTOCOL_VIOLATION) throw error
      throw new ConfigError('DATABASE_URL', `the pooler answers "${error.message}": ${REFUSED}`)
    })
    const { rows } = await first.query('show timezone')
    if (!['UTC', 'Etc/UTC'].includes(rows[0].TimeZone))
      throw new ConfigError(
        'DATABASE_URL',
        `the pooler drops the time zone: alter role ${first.user} set timezone to 'UTC'`,
      )
    const second = await connect(sessionSettings(config.DATABASE_URL))
    const isHeld = await statementsHold(first, second)
    if (!isHeld) throw new ConfigError('DATABASE_URL', PREPARED)
    const listener = await connect({ connectionString: config.DATABASE_LISTEN_URL })
    if (!(await hears(listener, first))) throw new ConfigError('DATABASE_LISTEN_URL', UNHEARD)
  } finally {
    for (const client of open) destroyConnection(client)
  }
}

/** Whether a statement that one client has prepared is there for it, and not for the other, whichever sessions both are given. */
async function statementsHold(first: pg.Client, second: pg.Client): Promise<boolean> {
  try {
    await first.query(PROBE)
    // In a transaction, so that the next statement of the first client cannot have the session of this one.
    await second.query('begin')
    await second.query(PROBE)
    await first.query(PROBE)
    return true
  } catch (error) {
    if (LOST_STATEMENT.includes(sqlStateOf(error) ?? '')) return false
    throw error
  }
}

async function hears(listener: pg.Client, sender: pg.Client): Promise<boolean> {
  const channel = `muster_check_${randomUUID()}`
  const heard = new Promise<boolean>(resolve => {
    const timer = setTimeout(() => resolve(false), WAIT_MS)
    listener.on('notification', () => {
      clearTimeout(timer)
      resolve(true)
    })
  })
  await listener.query(`listen ${pg.escapeIdentifier(channel)}`)
  await sender.query(`select pg_notify($1, '')`, [channel])
  return heard
}

/** How long a process trusts that it is notified, once it has been. */
const TRUST_MS = 15_000

/** Resolves when a notification of this process to itself has arrived. */
export const hearsItself = processSingleton(({ notifications, notifier }: Services) => {
  const channel = `muster_self_${randomUUID()}`
  let heardAt = Number.NEGATIVE_INFINITY
  const waiting: (() => void)[] = []
  const { ready } = notifications.listen(channel, () => {
    heardAt = performance.now()
    for (const resolve of waiting.splice(0)) resolve()
  })
  return async (): Promise<void> => {
    if (performance.now() - heardAt < TRUST_MS) return
    await ready
    const heard = new Promise<void>(resolve => waiting.push(resolve))
    notifier.notify({ channel, payload: '' })
    await heard
  }
})
