import { AsyncLocalStorage } from 'node:async_hooks'
import {
  createPool,
  type DatabasePool,
  type DatabaseTransactionConnection,
  type DriverTypeParser,
  type Interceptor,
} from 'slonik'
import type { z } from 'zod'
import './pg-client.ts'
import type { SqlExecutor } from '../jobs/queue.ts'
import type { PoolUse } from '../process/metrics.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'
import { createPreparer, planIsStale, STATEMENT_METHODS } from './prepared-statements.ts'
import type { ServerWatchdog } from './server-watchdog.ts'
import { type Queryable, rawQuery } from './sql.ts'
import { currentTenant, TenantLimiter } from './tenant-context.ts'

export type Pool = DatabasePool

/** A connection in a transaction; its own `transaction` is a savepoint. */
export type Transaction = DatabaseTransactionConnection

/** `2026-11-21 09:00:05.123+00` becomes `2026-11-21T09:00:05.123Z`: rows hold times as the wire shows them. */
function wireTime(value: string): string {
  if (value.endsWith('+00')) {
    const fraction = value.slice(20, -3)
    return `${value.slice(0, 10)}T${value.slice(11, 19)}.${fraction.padEnd(3, '0').slice(0, 3)}Z`
  }
  return new Date(value).toISOString()
}

const typeParsers: DriverTypeParser[] = [
  { name: 'timestamptz', parse: wireTime },
  { name: 'int8', parse: Number },
  { name: 'numeric', parse: Number },
  { name: 'date', parse: value => value },
]

export type PoolOptions = {
  databaseUrl: string
  connections: number
  applicationName?: string
  /**
   * For tests. Checks every row against the type its statement declares, which costs more than the query, and refuses
   * to take a connection where one is held: a burst of such work, each waiting for a second one, waits for ever.
   */
  strict?: boolean
  /** False: every statement is parsed and planned each time it is sent, as Slonik does by itself. */
  prepare?: boolean
  /** Most connections that the work of one tenant holds at once; the rest of it waits. */
  perTenant?: number
  silence?: ServerWatchdog
  /** Called once per round trip. For benchmarks and query-count tests. */
  onRoundTrip?: (text: string) => void
}

/** Whether an async context holds a connection of a strict pool: what was started under it may outlive it. */
const holding = new AsyncLocalStorage<{ open: boolean } | undefined>()

/**
 * Starts work on connections of its own from within a transaction. Only for work that the transaction does not wait for:
 * to wait for a second connection while holding one is what locks a process up.
 */
export const onSeparateConnection = <T>(work: () => T): T => holding.run(undefined, work)

/** Refuses to take a connection where one is held. */
const secondConnectionCheck: Interceptor = {
  name: 'second-connection-check',
  beforePoolConnection: ({ query }) => {
    const asked = query?.sql ?? 'connect or transaction'
    if (holding.getStore()?.open) throw new Error(`A second connection where one is held, use that one: ${asked}`)
    return null
  },
}

/** The pool with its held connections noted, for the check above. */
function noting(pool: Pool): Pool {
  const noted =
    <A extends unknown[], T>(work: (...args: A) => Promise<T>) =>
    async (...args: A): Promise<T> => {
      const held = { open: true }
      try {
        return await holding.run(held, work, ...args)
      } finally {
        held.open = false
      }
    }
  return Object.assign(Object.create(pool) as Pool, {
    connect: <T>(work: Parameters<typeof pool.connect<T>>[0]) => pool.connect(noted(work)),
    transaction: <T>(work: Parameters<typeof pool.transaction<T>>[0], retries?: number) =>
      pool.transaction(noted(work), retries),
  })
}

/** What stands before the connections of guarded pools. */
const gates = new WeakMap<Pool, { gate: TenantLimiter; connections: number }>()

/** How the connections of a pool are used. */
export function poolUse(pool: Pool): PoolUse {
  const { acquiredConnections, idleConnections, waitingClients } = pool.state()
  const guard = gates.get(pool)
  return {
    most: guard?.connections ?? 0,
    in_use: acquiredConnections,
    idle: idleConnections,
    waiting: waitingClients,
    held_back: guard?.gate.waiting ?? 0,
  }
}

/** The pool with what stands before its connections: a tenant's part of them, and a server that may be silent. */
function guarded(pool: Pool, { connections, perTenant, silence }: PoolOptions): Pool {
  if (!silence || perTenant === undefined) return pool
  const gate = new TenantLimiter(perTenant)
  let running = 0
  // On the path of every statement, so that nothing is put around the promise of one that has a connection at once.
  const start = (work: (begun: () => void) => Promise<unknown>, tenant?: string): Promise<unknown> => {
    const outcome = running < connections ? work(() => {}) : silence.waiting(work)
    running++
    const ended = () => {
      running--
      if (tenant !== undefined) gate.leave(tenant)
    }
    outcome.then(ended, ended)
    return outcome
  }
  const run = (work: (begun: () => void) => Promise<unknown>): Promise<unknown> => {
    if (silence.isSilent()) return Promise.reject(new DatabaseUnresponsiveError())
    const tenancy = currentTenant()
    if (!tenancy) return start(work)
    const turn = gate.enter(tenancy)
    return turn ? turn.then(() => start(work, tenancy.tenant)) : start(work, tenancy.tenant)
  }
  const guards = Object.create(pool) as Pool
  for (const method of STATEMENT_METHODS) {
    const send = pool[method].bind(pool) as (query: unknown) => Promise<unknown>
    Object.assign(guards, { [method]: (query: unknown) => run(() => send(query)) })
  }
  for (const method of ['connect', 'transaction'] as const) {
    const open = pool[method].bind(pool) as (work: unknown, ...more: unknown[]) => Promise<unknown>
    // Work that has its connection is not given up under its hands: its statements are.
    const openGuarded = (work: (connection: unknown) => Promise<unknown>, ...more: unknown[]) =>
      run(begun =>
        open(
          (connection: unknown) => {
            begun()
            return work(connection)
          },
          ...more,
        ),
      )
    Object.assign(guards, { [method]: openGuarded })
  }
  gates.set(guards, { gate, connections })
  return guards
}

const rowCheck: Interceptor = {
  name: 'row-check',
  transformRow: (context, query, row) => {
    const parser = context.resultParser as z.ZodType | undefined
    if (parser) {
      const result = parser.safeParse(row)
      if (!result.success)
        throw new Error(`A row is not what its statement declares: ${result.error.message}\n${query.sql}`)
    }
    return row
  },
}

/** What the sessions of a pool are opened with. */
export function sessionSettings(databaseUrl: string) {
  const url = new URL(databaseUrl)
  url.searchParams.set('options', `${url.searchParams.get('options') ?? ''} -c timezone=UTC`.trim())
  return {
    connectionString: url.href,
    statement_timeout: 60_000,
    idle_in_transaction_session_timeout: 60_000,
  }
}

/**
 * Opens the process's pool. Sessions carry no state, so a connection is handed on without a reset; times come
 * back as ISO text, bigint and numeric as numbers.
 */
export async function openPool(options: PoolOptions): Promise<Pool> {
  const { connectionString, statement_timeout, idle_in_transaction_session_timeout } = sessionSettings(
    options.databaseUrl,
  )
  const url = new URL(connectionString)
  if (!url.searchParams.has('application_name'))
    url.searchParams.set('application_name', options.applicationName ?? 'muster')
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
  const pool = await createPool(url.href, {
    captureStackTrace: false,
    maxPoolSize: options.connections,
    connectionTimeout: 3000,
    idleTimeout: 60_000,
    statementTimeout: statement_timeout,
    idleInTransactionSessionTimeout: idle_in_transaction_session_timeout,
    queryRetryLimit: 0,
    transactionRetryLimit: 3,
    // Slonik's own check refuses after the connection is taken, and work that outlives its transaction too.
    dangerouslyAllowForeignConnections: true,
    resetConnection: async () => {},
    typeParsers,
    interceptors,
  })
  const checked = options.strict ? noting(pool) : pool
  return guarded(preparer ? preparer.retrying(checked) : checked, options)
}

/** Lets pg-boss run its statements on a connection of ours, so that a message commits with what caused it. */
export const sqlExecutor = (db: Queryable): SqlExecutor => ({
  executeSql: async (text, values = []) => {
    const result = await db.query(rawQuery(text, values))
    return { rows: result.rows as unknown[] as never[] }
  },
})

/**
 * Thrown in a transaction by what must not wait while a connection is held: the transaction is rolled back, the work is
 * done, and the transaction is run again.
 */
export class RerunAfter extends Error {
  readonly work: () => Promise<unknown>
  constructor(work: () => Promise<unknown>) {
    super('The transaction waits for work that is done outside of it')
    this.work = work
  }
}

/** Times that a transaction is run: each run may find one more piece of work to be done first. */
const MAX_RUNS = 200

/** Whether an error asks for its transaction to be run again, once it is rolled back. */
export const isRerunRequest = (error: unknown): boolean => error instanceof RerunAfter || planIsStale(error)

/**
 * Runs `work` in one transaction. An error rolls back and is thrown on; the connection survives it (Slonik
 * would close a connection whose routine throws, which would make every refused write cost a reconnect).
 */
export async function inTransaction<T>(pool: Pool, work: (connection: Transaction) => Promise<T>): Promise<T> {
  for (let runs = 1; ; runs++) {
    try {
      return await transaction(pool, work)
    } catch (error) {
      // After a stale plan the statements have new names.
      if (runs === MAX_RUNS || !isRerunRequest(error)) throw error
      if (error instanceof RerunAfter) await error.work()
    }
  }
}

async function transaction<T>(pool: Pool, work: (connection: Transaction) => Promise<T>): Promise<T> {
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
    // When a connection is lost, Slonik rejects while the work still runs into it: what is tried again must not overlap it.
    await running?.catch(() => {})
    throw error
  }
}
