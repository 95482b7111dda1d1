import {
  BackendTerminatedError,
  BackendTerminatedUnexpectedlyError,
  ConnectionError,
  IdleTransactionTimeoutError,
  SlonikError,
  StatementCancelledError,
  StatementTimeoutError,
  TupleMovedToAnotherPartitionError,
} from 'slonik'

/**
 * Effect of a database error on the failed work, whether the server, the socket, pg or Slonik raised it.
 *
 * - `unavailable`: the server cannot be reached, lacks a resource, refuses writes, chose this transaction as the victim
 *   of a conflict, or cancelled the statement. The work may have been committed. Acknowledged work is requeued without
 *   counting an attempt.
 * - `timeout`: a statement exceeded the pool's statement timeout. The work is retried and the attempt counts, so that a
 *   statement that is always too slow is not repeated without limit.
 * - `fault`: the statement or its data are wrong. The attempt has failed.
 *
 * Requests answer the first two with SERVICE_NOT_READY. A database error in no list below is `unavailable`, so that an
 * unforeseen error never ends acknowledged work.
 */
export type DatabaseErrorKind = 'unavailable' | 'timeout' | 'fault'

/** Thrown for work that waits for an unresponsive server, or in vain for a connection. */
export class DatabaseUnresponsiveError extends Error {
  constructor(message = 'database unresponsive') {
    super(message)
  }
}

/** Thrown for a statement on a cell whose tables are gone: a move has renamed their schema, and this process has not closed the cell. */
export class CellTablesGoneError extends Error {
  constructor(cause: Error) {
    super('the tables of the cell are gone', { cause })
  }
}

/** lock_not_available, deadlock_detected */
const LOCK_FAILURES = new Set<string | null>(['55P03', '40P01'])

/** Whether a statement did not get a lock in time, or was chosen as the victim of a deadlock. */
export const isLockFailure = (error: unknown): boolean => LOCK_FAILURES.has(sqlStateOf(error))

/** SQLSTATEs of missing tables, schemas, functions and types. */
const MISSING = new Set<unknown>(['42P01', '3F000', '42883', '42704'])

/** Whether an error of the server is about a missing object of a schema. */
export const isObjectMissing = (error: Error): boolean => MISSING.has((error as ErrorWithCause).code)

const UNAVAILABLE = [
  DatabaseUnresponsiveError,
  CellTablesGoneError,
  BackendTerminatedError,
  BackendTerminatedUnexpectedlyError,
  ConnectionError,
  IdleTransactionTimeoutError,
  StatementCancelledError,
  TupleMovedToAnotherPartitionError,
]

/** Messages of errors without a class, raised by closing connections and by pg's pool. */
const CONNECTION_MESSAGES =
  /^(Client is (pending destroy|destroyed|pending release|not acquired)\.|Cannot use released connection|timeout exceeded when trying to connect|Connection terminated due to connection timeout)$/

/** Messages of the pools of Slonik and pg after this process has closed them. */
const CLOSED_MESSAGES = /^(Connection pool (has|is being) .*|Cannot use a pool after calling end on the pool)$/

/** SQLSTATE classes of a wrong statement or wrong data. */
const FAULTS = /^(0[A-Z]|2[0-57BDF]|3[489BF]|42|44|54|P0)/

/**
 * SQLSTATEs of these classes that the deployment causes: a read-only server, a transaction timeout, a missing grant, a
 * pooler that mixes up the prepared statements of its clients.
 */
const NOT_FAULTS = new Set(['25006', '25P03', '25P04', '42501', '42P05'])

const fromDriver = new WeakSet<object>()

/** Marks an error as raised by pg: by its socket, its protocol or the server. */
export function markDriverError(error: unknown): void {
  if (typeof error === 'object' && error !== null) fromDriver.add(error)
}

type ErrorWithCause = Error & { code?: unknown; cause?: unknown }

/** Returns the SQLSTATE of a server error thrown by pg or Slonik, null for any other error. */
export function sqlStateOf(error: unknown): string | null {
  for (const candidate of [error, (error as ErrorWithCause | null)?.cause])
    if (candidate instanceof Error && 'severity' in candidate) return String((candidate as ErrorWithCause).code)
  return null
}

/** Whether a statement failed because this process closed its pool. */
export const isPoolClosed = (error: unknown): boolean => error instanceof Error && CLOSED_MESSAGES.test(error.message)

function kindWithoutCause(error: Error): DatabaseErrorKind | null {
  if (error instanceof StatementTimeoutError) return 'timeout'
  if (UNAVAILABLE.some(type => error instanceof type)) return 'unavailable'
  if (CONNECTION_MESSAGES.test(error.message) || isPoolClosed(error)) return 'unavailable'
  const state = sqlStateOf(error)
  if (state !== null) return FAULTS.test(state) && !NOT_FAULTS.has(state) ? 'fault' : 'unavailable'
  if (error instanceof SlonikError) return 'fault'
  return fromDriver.has(error) ? 'unavailable' : null
}

/** Longest chain of causes examined. */
const MAX_CAUSES = 8

/**
 * Classifies an error; null if neither it nor one of its causes is a database error. An error raised because of a
 * database error, such as a failed operation called by a tool, is classified by its cause.
 */
export function databaseErrorKind(error: unknown): DatabaseErrorKind | null {
  let current = error
  for (let depth = 0; depth < MAX_CAUSES && current instanceof Error; depth++) {
    const kind = kindWithoutCause(current)
    if (kind !== null) return kind
    current = current.cause
  }
  return null
}

/** Whether an error comes from the database. Its text contains SQL and may only be logged. */
export const isDatabaseError = (error: unknown): boolean => databaseErrorKind(error) !== null

/**
 * Whether work that failed with this error should be retried because of the database. Its writes may have been
 * committed.
 */
export function isTransient(error: unknown): boolean {
  const kind = databaseErrorKind(error)
  return kind === 'unavailable' || kind === 'timeout'
}
