import pg from 'pg'
import { isBeginPending, preparedPlanFor } from './commit-piggyback.ts'
import { markDriverError } from './database-errors.ts'
import { abandonmentNow } from './tenant-context.ts'

/**
 * Changes to the client of pg that hold for every client of a process that imports this file.
 *
 * Keeps query results out of the old heap. Asked for a promise, pg gives a query its callback after the query was made, and all that
 * such a query answers survives every collection of the young heap: in Node 24 results then stay until a full collection,
 * and nine in ten full collections of a process that searched were due to it. With a callback that is there from the start
 * they are collected; test/core/db.test.ts measures it.
 *
 * Transactions take fewer round trips (transaction-edges.ts).
 *
 * Statements under way are known with their start, for whoever has to tell a slow one from a server that is silent
 * (silence.ts), and with the work that they are of, for cancelling them when it is abandoned (abandoned.ts).
 *
 * Errors of connections and statements are marked (database-errors.ts): a reset socket of the database has the same code as
 * the reset socket of a tool.
 */
const { query } = pg.Client.prototype as unknown as { query: (...args: unknown[]) => unknown }

export type PendingStatement = {
  client: pg.Client
  /** When it began (performance.now). */
  since: number
  isAbandoned: (() => boolean) | undefined
  /** Resolves when its cancellation has reached the server. */
  cancelling?: Promise<void>
}

const pending = new Map<pg.Client, PendingStatement>()

const listeners = new Set<() => void>()

/** Calls `listener` when a statement begins while none is under way. Call the result to end. */
export function onPending(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Statements that wait for their answer. */
export const pendingStatements = (): IterableIterator<PendingStatement> => pending.values()

function queryWithCallback(this: pg.Client, config: unknown, values?: unknown, callback?: unknown): unknown {
  const isSubmitted = typeof (config as { submit?: unknown } | null)?.submit === 'function'
  if (isSubmitted || typeof values === 'function' || callback) {
    if (isBeginPending(this)) throw new Error('A transaction begins with a statement that is a text')
    return query.call(this, config, values, callback)
  }
  const plan = preparedPlanFor(this, config as string | { text: string }, values)
  if (plan && 'answer' in plan) return Promise.resolve(plan.answer)
  // A client has one statement under way; what is queued behind it waits for the same answer.
  if (!pending.has(this)) pending.set(this, { client: this, since: performance.now(), isAbandoned: abandonmentNow() })
  if (pending.size === 1) for (const listener of listeners) listener()
  return new Promise((resolve, reject) => {
    const answer = (error: Error | null, result: unknown) => {
      const cancelling = pending.get(this)?.cancelling
      pending.delete(this)
      const settle = () => (error ? reject(error) : resolve(result))
      // Until then the connection is not handed on: the cancellation would hit the next statement.
      if (cancelling) void cancelling.then(settle)
      else settle()
    }
    if (plan) query.call(this, plan.send(answer))
    else query.call(this, config, values, answer)
  }).catch(error => {
    // As pg does: the stack of who asked, not of the socket.
    Error.captureStackTrace(error)
    throw error
  })
}

type Failing = {
  _connect(callback: (error: Error | undefined, ...rest: unknown[]) => void): void
  _handleErrorEvent(error: Error): void
  handleError(error: Error, connection: unknown): void
}

const { _connect, _handleErrorEvent } = pg.Client.prototype as unknown as Failing
const { handleError } = pg.Query.prototype as unknown as Failing

Object.assign(pg.Client.prototype, {
  query: queryWithCallback,
  _connect(this: Failing, callback: Parameters<Failing['_connect']>[0]) {
    _connect.call(this, (error, ...rest) => {
      markDriverError(error)
      callback(error, ...rest)
    })
  },
  _handleErrorEvent(this: Failing, error: Error) {
    markDriverError(error)
    _handleErrorEvent.call(this, error)
  },
})
Object.assign(pg.Query.prototype, {
  handleError(this: Failing, error: Error, connection: unknown) {
    markDriverError(error)
    handleError.call(this, error, connection)
  },
})
