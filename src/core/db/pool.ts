import { AsyncLocalStorage } from 'node:async_hooks'
import { createPool, type DatabasePool, type DatabaseTransactionConnection, type Interceptor } from 'slonik'
import type { z } from 'zod'
import type { PoolUse } from '../base/metrics.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'
import { withParameters } from './database-url.ts'
import { KEEPALIVE_OPTIONS, SESSION_TIMEOUTS } from './pg-client.ts'
import { databaseDriver } from './pg-driver.ts'
import { createPreparer, isPlanStale, STATEMENT_METHODS } from './prepared-statements.ts'
import type { ServerWatchdog } from './server-watchdog.ts'
import { type Queryable, rawQuery } from './sql.ts'
import { statementSpans } from './statement-spans.ts'
import { currentTenant, TenantLimiter } from './tenant-context.ts'

declare module '../base/services.ts' {
  interface Services {
    pool: Pool
  }
}

export type Pool = DatabasePool

/** A connection in a transaction; its `transaction` method creates a savepoint. */
export type Transaction = DatabaseTransactionConnection

export type PoolOptions = {
  databaseUrl: string
  connections: number
  applicationName?: string
  /**
   * For tests. Checks every row against the declared type of its statement, which costs more than the query, and throws
   * if work that holds a connection acquires a second one: a burst of such work deadlocks on the pool.
   */
  strict?: boolean
  /** Whether statements have spans, default false. */
  spans?: boolean
  /** Whether repeated statements are prepared, default true. */
  prepare?: boolean
  /** Most connections that the work of one tenant holds concurrently. */
  perTenant?: number
  watchdog?: ServerWatchdog
  /** Whether the tables may be moved to another database while the pool is open, default false. */
  mayMove?: boolean
  /** Called once per round trip. For benchmarks and query-count tests. */
  onRoundTrip?: (text: string) => void
}

/** The connection of a strict pool that an async context holds; `open` is false once it is released. */
const heldConnection = new AsyncLocalStorage<{ open: boolean } | undefined>()

/**
 * Starts work on separate connections from within a transaction. Only for work that the transaction does not wait for, or in
 * the pool of a cell for a transaction at home: waiting for a second connection of a pool while holding one can deadlock it.
 */
export const onSeparateConnection = <T>(work: () => T): T => heldConnection.run(undefined, work)

/** Throws if an async context that holds a connection acquires another one. */
const secondConnectionCheck: Interceptor = {
  name: 'second-connection-check',
  beforePoolConnection: ({ query }) => {
    const statement = query?.sql ?? 'connect or transaction'
    if (heldConnection.getStore()?.open) throw new Error(`second connection while one is held: ${statement}`)
    return null
  },
}

/** Wraps a pool so that held connections are recorded for the check above. */
function trackHeldConnections(pool: Pool): Pool {
  const tracked =
    <A extends unknown[], T>(work: (...args: A) => Promise<T>) =>
    async (...args: A): Promise<T> => {
      const held = { open: true }
      try {
        return await heldConnection.run(held, work, ...args)
      } finally {
        held.open = false
      }
    }
  return Object.assign(Object.create(pool) as Pool, {
    connect: <T>(work: Parameters<typeof pool.connect<T>>[0]) => pool.connect(tracked(work)),
    transaction: <T>(work: Parameters<typeof pool.transaction<T>>[0], retries?: number) =>
      pool.transaction(tracked(work), retries),
  })
}

/** Tenant limiters of limited pools. */
const limiters = new WeakMap<Pool, { limiter: TenantLimiter; connections: number }>()

/** Returns the connection usage of a pool. */
export function poolUse(pool: Pool): PoolUse {
  const { acquiredConnections, idleConnections, waitingClients } = pool.state()
  const limits = limiters.get(pool)
  return {
    most: limits?.connections ?? 0,
    in_use: acquiredConnections,
    idle: idleConnections,
    waiting: waitingClients,
    held_back: limits?.limiter.waiting ?? 0,
  }
}

/** Wraps a pool with the connection limit per tenant, and with immediate errors while the server is unresponsive. */
function limitConnections(pool: Pool, { connections, perTenant, watchdog }: PoolOptions): Pool {
  if (!watchdog || perTenant === undefined) return pool
  const limiter = new TenantLimiter(perTenant, watchdog.hasEndedConnections)
  let running = 0
  // This is the path of every statement: work with an immediately available connection gets no wrapping promise.
  const start = (work: (begun: () => void) => Promise<unknown>, tenant?: string): Promise<unknown> => {
    const result = running < connections ? work(() => {}) : watchdog.runWhileResponsive(work)
    running++
    const onSettled = () => {
      running--
      if (tenant !== undefined) limiter.release(tenant)
    }
    result.then(onSettled, onSettled)
    return result
  }
  const run = (work: (begun: () => void) => Promise<unknown>): Promise<unknown> => {
    if (watchdog.isUnresponsive()) return Promise.reject(new DatabaseUnresponsiveError())
    const context = currentTenant()
    if (!context) return start(work)
    const slot = limiter.acquire(context)
    return slot ? slot.then(() => start(work, context.tenant)) : start(work, context.tenant)
  }
  const limited = Object.create(pool) as Pool
  for (const method of STATEMENT_METHODS) {
    const send = pool[method].bind(pool) as (query: unknown) => Promise<unknown>
    Object.assign(limited, { [method]: (query: unknown) => run(() => send(query)) })
  }
  for (const method of ['connect', 'transaction'] as const) {
    const open = pool[method].bind(pool) as (work: unknown, ...rest: unknown[]) => Promise<unknown>
    // Work that holds a connection is not rejected itself: its statements are aborted.
    const openLimited = (work: (connection: unknown) => Promise<unknown>, ...rest: unknown[]) =>
      run(begun =>
        open(
          (connection: unknown) => {
            begun()
            return work(connection)
          },
          ...rest,
        ),
      )
    Object.assign(limited, { [method]: openLimited })
  }
  limiters.set(limited, { limiter, connections })
  return limited
}

const rowCheck: Interceptor = {
  name: 'row-check',
  transformRow: (context, query, row) => {
    const parser = context.resultParser as z.ZodType | undefined
    if (parser) {
      const result = parser.safeParse(row)
      if (!result.success)
        throw new Error(`row does not match the declared type of its statement: ${result.error.message}\n${query.sql}`)
    }
    return row
  },
}

/** Returns the connection options of a pool's sessions. */
export const sessionSettings = (databaseUrl: string) => ({
  connectionString: withParameters(databaseUrl, { options: `-c timezone=UTC ${KEEPALIVE_OPTIONS}` }),
  ...SESSION_TIMEOUTS,
})

/** Time for a connection of a pool to open. */
const CONNECT_MS = 3000

/**
 * Opens the pool of a process, with a first connection. Sessions carry no state, so a released connection is reused
 * without a reset.
 * @throws ConnectionError
 */
export async function openPool(options: PoolOptions): Promise<Pool> {
  const config = {
    // Replaced by the name in the URL, if it has one.
    application_name: options.applicationName ?? 'muster',
    ...sessionSettings(options.databaseUrl),
    connectionTimeoutMillis: CONNECT_MS,
  }
  const interceptors: Interceptor[] = []
  if (options.strict) interceptors.push(secondConnectionCheck, rowCheck)
  if (options.onRoundTrip) {
    const { onRoundTrip } = options
    interceptors.push({
      name: 'round-trips',
      beforeQueryExecution: (_context, query) => {
        onRoundTrip(query.sql)
        return null
      },
    })
  }
  const preparer = options.prepare === false ? null : createPreparer()
  if (preparer) interceptors.push(preparer.interceptor)
  if (options.spans) interceptors.push(statementSpans)
  const pool = await createPool('postgres://', {
    captureStackTrace: false,
    maxPoolSize: options.connections,
    idleTimeout: 60_000,
    // One attempt: the driver repeats those that fail immediately.
    connectionRetryLimit: 1,
    queryRetryLimit: 0,
    transactionRetryLimit: 3,
    // Slonik's own check throws only after acquiring the connection, and also for work that outlives its transaction.
    dangerouslyAllowForeignConnections: true,
    resetConnection: async () => {},
    driverFactory: databaseDriver(config, options),
    interceptors,
  })
  await pool.connect(async () => {})
  const checked = options.strict ? trackHeldConnections(pool) : pool
  return limitConnections(preparer ? preparer.retrying(checked) : checked, options)
}

/** Executes SQL, in the caller's transaction or on a pool. Parameters are `$1`, `$2`, ... */
export type SqlExecutor = { executeSql(text: string, values?: unknown[]): Promise<{ rows: any[] }> }

/** Returns an executor by which pg-boss runs statements in our transaction, so that messages commit with it. */
export const sqlExecutor = (db: Queryable): SqlExecutor => ({
  executeSql: async (text, values = []) => {
    const result = await db.query(rawQuery(text, values))
    return { rows: result.rows as unknown[] as never[] }
  },
})

/**
 * Runs `work` in one transaction. An error rolls back and is rethrown. The connection survives it: Slonik would close a
 * connection whose routine throws, so that every refused write would cost a reconnect.
 */
export async function inTransaction<T>(pool: Pool, work: (connection: Transaction) => Promise<T>): Promise<T> {
  try {
    return await runTransaction(pool, work)
  } catch (error) {
    // The statements are then prepared under new names.
    if (!isPlanStale(error)) throw error
    return runTransaction(pool, work)
  }
}

async function runTransaction<T>(pool: Pool, work: (connection: Transaction) => Promise<T>): Promise<T> {
  let running: Promise<unknown> | undefined
  try {
    const outcome = await pool.connect(async connection => {
      try {
        running = connection.transaction(inner => work(inner))
        return { ok: true as const, value: (await running) as T }
      } catch (error) {
        return { ok: false as const, error }
      }
    })
    if (outcome.ok) return outcome.value
    throw outcome.error
  } catch (error) {
    // After a lost connection Slonik rejects while `work` may still run: a retry must not overlap it.
    await running?.catch(() => {})
    throw error
  }
}
