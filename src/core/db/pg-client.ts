import { connect } from 'node:net'
import pg from 'pg'
import { preparedPlanFor } from './commit-piggyback.ts'
import { markDriverError } from './database-errors.ts'
import { abandonmentNow, withoutTenant } from './tenant-context.ts'

export type PendingStatement = {
  client: pg.Client
  /** Start time (performance.now). */
  since: number
  isAbandoned: (() => boolean) | undefined
  /** Resolves when the server has received the cancellation. */
  cancelling?: Promise<void>
}

const pending = new Map<pg.Client, PendingStatement>()

const listeners = new Set<() => void>()

/** Calls `listener` when a statement starts while no other is pending. Returns a function that unsubscribes. */
export function onPending(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Returns the statements without a result yet. */
export const pendingStatements = (): IterableIterator<PendingStatement> => pending.values()

type Callback = (...answer: any[]) => void

const marking =
  (callback: Callback): Callback =>
  (error, ...answer) => {
    markDriverError(error)
    callback(error, ...answer)
  }

/**
 * pg's client for all connections of the application.
 *
 * - Keeps query results out of the old heap. For a promise, pg assigns the callback after constructing the query, and
 *   in Node 24 the results of such a query survive until a full collection: nine in ten full collections of a searching
 *   process were caused by it. With a callback passed to the constructor they are collected young; test/core/db.test.ts
 *   measures it.
 * - Saves round trips of transactions (commit-piggyback.ts).
 * - Tracks pending statements with their start, for detecting an unresponsive server (server-watchdog.ts) and for
 *   cancelling the statements of abandoned requests (below).
 * - Marks errors of connections and statements (database-errors.ts): a reset database socket has the same error code as
 *   a reset socket of a tool.
 */
export class DatabaseClient extends pg.Client {
  constructor(config: pg.ClientConfig) {
    super(config)
    this.on('error', markDriverError)
  }

  override connect(callback?: Callback): any {
    if (callback) return super.connect(marking(callback))
    return super.connect().catch(error => {
      markDriverError(error)
      throw error
    })
  }

  /** Statements of pg-boss, which passes callbacks, are sent unchanged. */
  override query(config: any, values?: any, callback?: Callback): any {
    if (callback) return super.query(config, values, marking(callback))
    const plan = preparedPlanFor(this, config, values)
    if (plan && 'answer' in plan) return Promise.resolve(plan.answer)
    // A client runs one statement at a time; statements queued after it share its entry.
    if (!pending.has(this)) pending.set(this, { client: this, since: performance.now(), isAbandoned: abandonmentNow() })
    if (pending.size === 1) for (const listener of listeners) listener()
    return new Promise((resolve, reject) => {
      const answer = (error: Error | null, result: unknown) => {
        const cancelling = pending.get(this)?.cancelling
        pending.delete(this)
        markDriverError(error)
        const settle = () => (error ? reject(error) : resolve(result))
        // The connection is released only after the cancellation, which would otherwise hit the next statement.
        if (cancelling) void cancelling.then(settle)
        else settle()
      }
      if (plan) super.query(plan.send(answer) as never)
      else super.query(config, values, answer)
    }).catch(error => {
      // Like pg: the stack of the caller, not of the socket.
      Error.captureStackTrace(error)
      throw error
    })
  }
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
    for (const statement of pending.values())
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
