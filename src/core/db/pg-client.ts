import { AsyncLocalStorage } from 'node:async_hooks'
import type { EventEmitter } from 'node:events'
import { connect } from 'node:net'
import pg from 'pg'
import { databaseConnectionsEnded } from '../base/metrics.ts'
import { preparedPlanFor } from './commit-piggyback.ts'
import { DatabaseUnresponsiveError, markDriverError, sqlStateOf } from './database-errors.ts'
import { addressOf, type DatabaseUrl, hostOf, parseDatabaseUrl, type SessionTarget } from './database-url.ts'
import { abandonmentNow, withoutTenant } from './tenant-context.ts'

export type PendingStatement = {
  client: DatabaseClient
  /** Start time (performance.now). */
  since: number
  /** Time after which the connection counts as dead. */
  limitMs: number
  isAbandoned: (() => boolean) | undefined
  /** Resolves when the server has received the cancellation. */
  cancelling?: Promise<void>
}

const pending = new Set<PendingStatement>()

const open = new Set<DatabaseClient>()

const listeners = new Set<() => void>()

/** Calls `listener` when a statement starts while no other is pending. Returns a function that unsubscribes. */
export function onPending(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Returns the statements without a result yet. */
export const pendingStatements = (): ReadonlySet<PendingStatement> => pending

/** Returns the connections of this process that are open or being opened. */
export const openClients = (): ReadonlySet<DatabaseClient> => open

/** Schema of the queues in statements. */
export const QUEUE_SCHEMA = 'pgboss'

/** Limits of the sessions of pools, in milliseconds. */
export const SESSION_TIMEOUTS = { statement_timeout: 60_000, idle_in_transaction_session_timeout: 60_000 }

/** Time that a statement has in addition to its timeout at the server. */
const LIMIT_MARGIN_MS = 5000
const DEFAULT_LIMIT_MS = SESSION_TIMEOUTS.statement_timeout + LIMIT_MARGIN_MS

const limits = new AsyncLocalStorage<number>()

/** Runs work whose statements may take `limitMs`, because it sets another `statement_timeout` than its session has. */
export const withStatementLimit = <T>(limitMs: number, work: () => T): T => limits.run(limitMs, work)

/**
 * Bound of one try to connect, and keepalive of the open connection. The kernel adds ten probes, one per second, so
 * that an idle connection to a lost host ends after 20 s. Node cannot set TCP_USER_TIMEOUT, the bound of unacknowledged
 * data: a connection with a pending statement is ended by server-watchdog.ts.
 */
const CONNECT_MS = 5000
const KEEPALIVE_MS = 10_000

/**
 * Parameters for the server's end of a connection: it ends a session, and releases its locks, 15 to 30 seconds after the
 * host of this process was lost. A pooler does not pass them on.
 */
export const KEEPALIVE_OPTIONS =
  '-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4 -c tcp_user_timeout=15000'

type Callback = (...answer: any[]) => void

type Connection = EventEmitter & { stream: { destroy(error?: Error): void } }

/** The internals of pg's client that this file uses. */
type Internals = { connection: Connection; host: string; port: number; readyForQuery: boolean }

/** Time for which a host that did not answer, or is not the required server, is tried last. */
const AVOIDED_MS = 30_000
const failedAt = new Map<string, number>()

const isAvoided = (url: string): boolean =>
  performance.now() - (failedAt.get(hostOf(url)) ?? Number.NEGATIVE_INFINITY) < AVOIDED_MS

/** SQLSTATEs of a server that starts or stops, and the class of lost connections, which a pooler without its server reports. */
const NOT_RUNNING = /^(57P0[123]|08...)$/

/** Whether the next host is tried: not if this one refuses the user or the database. */
function triesNext(error: unknown): boolean {
  const state = sqlStateOf(error)
  return state === null || NOT_RUNNING.test(state)
}

/** SQLSTATE of a write to a standby, or to a server that was made read-only. */
const READ_ONLY = '25006'

/**
 * First major version of PostgreSQL with a fault in run-time partition pruning: a statement that finds partitions by values of
 * other rows reads freed memory after it has waited for a row that another transaction changed, and the server ends all of its
 * sessions. Observed with 18.4 under concurrent dispatch of events; PostgreSQL fixed it in commit 1b5dd3a (October 2026), after
 * 18.6. No test reproduces it: before a version is excepted here, check that it contains that commit.
 */
const FAULTY_PRUNING_SINCE = 18

/** Statement after which a session plans without pruning: each partition is searched, by its index. */
const DISABLE_PRUNING = 'set enable_partition_pruning = off'

/** Whether the run-time pruning of a server may end it, by the version that it reported, such as `18.4`. */
export const hasFaultyPruning = (version: string | undefined): boolean =>
  Number.parseInt(version ?? '', 10) >= FAULTY_PRUNING_SINCE

/** Whether a session is what a target requires, by the parameters that the server reported. */
function meetsTarget(target: SessionTarget, reported: Readonly<Record<string, string>>): boolean {
  const isStandby = reported.in_hot_standby === 'on'
  const isReadOnly = isStandby || reported.default_transaction_read_only === 'on'
  switch (target) {
    case 'read-write':
      return !isReadOnly
    case 'read-only':
      return isReadOnly
    case 'primary':
      return !isStandby
    case 'standby':
      return isStandby
    default:
      return true
  }
}

/**
 * pg's client for all connections of the application.
 *
 * - Keeps query results out of the old heap. For a promise, pg assigns the callback after constructing the query, and
 *   in Node 24 the results of such a query survive until a full collection: nine in ten full collections of a searching
 *   process were caused by it. With a callback passed to the constructor they are collected young; test/core/db.test.ts
 *   measures it.
 * - Saves round trips of transactions (commit-piggyback.ts).
 * - Registers connections and pending statements with their start, for detecting an unresponsive server and dead
 *   connections (server-watchdog.ts) and for cancelling the statements of abandoned requests (below).
 * - Tries the hosts of its URL in order (database-url.ts), and leaves a server that became read-only.
 * - Executes statements in the schema of its URL: names in the schema `pgboss`, which a cell has in its own, are rewritten.
 * - Prevents a fault of PostgreSQL (FAULTY_PRUNING_SINCE).
 * - Marks errors of connections and statements (database-errors.ts): a reset database socket has the same error code as
 *   a reset socket of a tool.
 */
export class DatabaseClient extends pg.Client {
  /** Hosts and database, which identify the server. */
  readonly address: string
  /** Time when the connection was opened, or when opening began (performance.now). */
  openedAt = performance.now()
  isConnected = false
  readonly #config: pg.ClientConfig
  readonly #databaseUrl: DatabaseUrl
  readonly #limitMs: number
  #leaving: Error | null = null
  #onLeave: (() => void) | null = null
  /** Host of the current connection, of several. */
  #url: string
  /** Parameters that the server of the current connection reported. */
  #reported: Record<string, string> = {}

  constructor(config: pg.ClientConfig) {
    const databaseUrl = parseDatabaseUrl(config.connectionString as string)
    const connectionTimeoutMillis = Math.min(config.connectionTimeoutMillis || CONNECT_MS, CONNECT_MS)
    const keepAlive = { keepAlive: true, keepAliveInitialDelayMillis: KEEPALIVE_MS }
    const own = { ...config, ...keepAlive, connectionTimeoutMillis, connectionString: databaseUrl.urls[0] }
    super(own)
    this.#config = own
    this.#databaseUrl = databaseUrl
    this.#url = databaseUrl.urls[0]
    this.address = addressOf(config.connectionString as string)
    const { statement_timeout } = config
    this.#limitMs = statement_timeout ? Number(statement_timeout) + LIMIT_MARGIN_MS : DEFAULT_LIMIT_MS
    this.on('error', markDriverError)
    this.on('end', () => open.delete(this))
  }

  override connect(callback?: Callback): any {
    open.add(this)
    this.openedAt = performance.now()
    const connected = this.#openSession()
    if (!callback) return connected
    connected.then(() => callback(null, this), callback)
  }

  /** Connects and prepares the session. A failure leaves no connection, also if the session had begun. */
  async #openSession(): Promise<void> {
    try {
      await this.#connectToFirst()
      if (hasFaultyPruning(this.#reported.server_version)) await this.#disablePruning()
    } catch (error) {
      markDriverError(error)
      this.destroy()
      throw error
    }
    this.openedAt = performance.now()
    this.isConnected = true
  }

  /** Process ID of the session, null before it begins. */
  get sessionId(): number | null {
    return (this as unknown as { processID: number | null }).processID
  }

  /** Ends the connection without waiting for the server; a pending statement fails with `error`. */
  destroy(error?: Error): void {
    open.delete(this)
    ;(this as unknown as Internals).connection.stream.destroy(error)
  }

  /** Why the connection is to be ended, once nothing uses it; null if it is not. */
  get leaving(): Error | null {
    return this.#leaving
  }

  /** Calls a function in place of ending a connection that is to be left. */
  onLeave(end: () => void): void {
    this.#onLeave = end
  }

  /** Ends the connection once nothing uses it: when it has neither a statement nor a transaction, or as `onLeave` decides. */
  leave(error: Error): void {
    if (this.#leaving) return
    this.#leaving = error
    databaseConnectionsEnded.inc({ reason: 'read_only' })
    if (this.#onLeave) {
      this.#onLeave()
      return
    }
    const internals = this as unknown as Internals
    const endIfIdle = () => {
      if (internals.readyForQuery && this.getTransactionStatus() === 'I') this.destroy(error)
    }
    // Later, so that the result of the last statement comes before the error of the connection.
    internals.connection.on('readyForQuery', () => setImmediate(endIfIdle))
    endIfIdle()
  }

  /**
   * Leaves a server that became read-only, with all connections to its database: each would fail a later write, and a
   * listening one would receive no notifications. A new connection goes to another host of the URL, or to where the
   * only host leads then.
   */
  #leaveServer(error: Error): void {
    failedAt.set(hostOf(this.#url), performance.now())
    this.leave(error)
    const { host, port, database } = this
    for (const other of open)
      if (other.isConnected && other.host === host && other.port === port && other.database === database)
        other.leave(new DatabaseUnresponsiveError('database server is read-only'))
  }

  /** Makes a new session plan without pruning. */
  #disablePruning(): Promise<void> {
    return new Promise((resolve, reject) => {
      const statement = { text: DISABLE_PRUNING, limitMs: CONNECT_MS }
      this.query(statement, undefined, (error: Error | null) => (error ? reject(error) : resolve()))
    })
  }

  /** Collects the parameters that the server of the current connection reports, and calls a function for each. */
  #collectReports(listener?: () => void): void {
    const reported: Record<string, string> = {}
    this.#reported = reported
    const { connection } = this as unknown as Internals
    connection.on('parameterStatus', ({ parameterName, parameterValue }) => {
      reported[parameterName] = parameterValue
      listener?.()
    })
  }

  /** Connects to the first host that answers and is the required server. */
  async #connectToFirst(): Promise<void> {
    const { urls, target } = this.#databaseUrl
    if (urls.length === 1 && target === 'any') {
      this.#collectReports()
      return void (await super.connect())
    }
    const inOrder = [...urls.filter(url => !isAvoided(url)), ...urls.filter(isAvoided)]
    const tries = inOrder.map(url => ({ url, target: target === 'prefer-standby' ? ('standby' as const) : target }))
    if (target === 'prefer-standby') tries.push(...inOrder.map(url => ({ url, target: 'any' as const })))
    for (const [index, each] of tries.entries())
      try {
        return await this.#connectTo(each.url, each.target)
      } catch (error) {
        if (index === tries.length - 1 || !triesNext(error) || !open.has(this)) throw error
      }
  }

  async #connectTo(url: string, target: SessionTarget): Promise<void> {
    const client = this as unknown as Internals
    const next = new pg.Client({ ...this.#config, connectionString: url }) as unknown as Internals
    const previous = client.connection.removeAllListeners()
    previous.on('error', () => {})
    previous.stream.destroy()
    const { connection, host, port } = next
    const unopened = {
      _connecting: false,
      _connected: false,
      _connectionError: false,
      _ended: false,
      readyForQuery: false,
    }
    Object.assign(client, { connection, host, port, ...unopened })
    this.#url = url
    const notRequired = () => new Error(`session is not ${target}`)
    this.#collectReports(() => {
      // A server that is made read-only reports it with the next statement.
      if (this.isConnected && !meetsTarget(target, this.#reported)) this.#leaveServer(notRequired())
    })
    try {
      await super.connect()
      if (!meetsTarget(target, this.#reported)) throw notRequired()
    } catch (error) {
      if (triesNext(error)) failedAt.set(hostOf(url), performance.now())
      throw error
    }
    failedAt.delete(hostOf(url))
  }

  override query(statement: any, values?: any, callback?: Callback): any {
    const { schema } = this.#databaseUrl
    const config = schema === null ? statement : inSchema(schema, statement)
    // pg-boss passes callbacks, and its pool may call this in the context of another statement.
    if (callback) {
      const entry = this.#begin(config.limitMs ?? this.#limitMs, undefined)
      return super.query(config, values, (error: Error | null, result: unknown) =>
        this.#end(entry, callback, error, result),
      )
    }
    const plan = preparedPlanFor(this, config, values)
    if (plan && 'answer' in plan) return Promise.resolve(plan.answer)
    const entry = this.#begin(limits.getStore() ?? this.#limitMs, abandonmentNow())
    return new Promise((resolve, reject) => {
      const settle = (error: Error | null, result: unknown) => (error ? reject(error) : resolve(result))
      const answer = (error: Error | null, result: unknown) => this.#end(entry, settle, error, result)
      if (plan) super.query(plan.send(answer) as never)
      else super.query(config, values, answer)
    }).catch(error => {
      // Like pg: the stack of the caller, not of the socket.
      Error.captureStackTrace(error)
      throw error
    })
  }

  #begin(limitMs: number, isAbandoned: PendingStatement['isAbandoned']): PendingStatement {
    const entry: PendingStatement = { client: this, since: performance.now(), limitMs, isAbandoned }
    pending.add(entry)
    if (pending.size === 1) for (const listener of listeners) listener()
    return entry
  }

  #end(entry: PendingStatement, settle: Callback, error: Error | null, result: unknown): void {
    pending.delete(entry)
    markDriverError(error)
    if (error && sqlStateOf(error) === READ_ONLY) this.#leaveServer(error)
    // The connection is released only after the cancellation, which would otherwise hit the next statement.
    if (entry.cancelling) void entry.cancelling.then(() => settle(error, result))
    else settle(error, result)
  }
}

/** Returns a statement whose names in the schema of the queues are in `schema`. */
function inSchema(schema: string, statement: unknown): unknown {
  const rewrite = (text: string) => text.replaceAll(/\bpgboss\./g, `${schema}.`)
  if (typeof statement === 'string') return rewrite(statement)
  const { text } = statement as { text?: unknown }
  return typeof text === 'string' ? { ...(statement as object), text: rewrite(text) } : statement
}

const ABANDONED_PERIOD_MS = 250
/** Timeout of the connection that sends a cancellation. */
const CANCEL_MS = 2000
/** Code of PostgreSQL's CancelRequest message. */
const CANCEL_REQUEST = 80_877_102

/**
 * Cancels statements whose caller is gone: a slow search would keep its connection and a processor of the server until
 * it ends. Pending statements are checked every 250 ms; shorter statements cost nothing.
 */
export function cancelAbandonedStatements(): { close(): void } {
  let timer: NodeJS.Timeout | undefined
  const stopTimer = () => {
    clearInterval(timer)
    timer = undefined
  }
  const cancelAbandoned = () => {
    if (pending.size === 0) stopTimer()
    for (const statement of pending)
      if (statement.isAbandoned?.()) statement.cancelling ??= requestCancellation(statement.client)
  }
  const unsubscribe = onPending(() => {
    timer ??= withoutTenant(() => setInterval(cancelAbandoned, ABANDONED_PERIOD_MS)).unref()
  })
  return {
    close() {
      unsubscribe()
      stopTimer()
    },
  }
}

/**
 * Sends a CancelRequest for a client's statement on a new connection. Resolves when the server closes that connection,
 * which it does after signalling the statement, or when the request cannot be sent.
 */
function requestCancellation(client: pg.Client): Promise<void> {
  const { host, port, processID, secretKey } = client as typeof client & { processID: number; secretKey: number }
  const message = Buffer.alloc(16)
  for (const [index, value] of [message.length, CANCEL_REQUEST, processID, secretKey].entries())
    message.writeInt32BE(value, index * 4)
  return new Promise(resolve => {
    const socket = host.startsWith('/') ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, host)
    socket.setTimeout(CANCEL_MS, () => socket.destroy())
    socket.on('error', () => {})
    socket.once('close', () => resolve())
    socket.resume()
    socket.write(message)
  })
}
