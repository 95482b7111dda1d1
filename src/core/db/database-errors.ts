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
 * What an error of the database means for the work that it failed, whether the server, the socket, pg or Slonik raised it.
 *
 * - `unavailable`: the server cannot be reached, is out of a resource, takes no writes, chose this transaction as the
 *   victim of a conflict, or was told to cancel the statement. The work may have been committed. Work that was
 *   acknowledged is requeued without counting an attempt.
 * - `timeout`: a statement exceeded the statement timeout of the pool. Tried again, and counted: a statement that is
 *   always too slow must not be repeated for ever.
 * - `fault`: the statement is wrong, or its data are. The attempt has failed.
 *
 * Requests answer the first two with SERVICE_NOT_READY. An error of the database that is in no list below is `unavailable`:
 * what was not foreseen ends no acknowledged work.
 */
export type DatabaseErrorKind = 'unavailable' | 'timeout' | 'fault'

/** Thrown for work that an unresponsive server would never have answered. */
export class DatabaseUnresponsiveError extends Error {
  constructor() {
    super('the database does not answer')
  }
}

const UNAVAILABLE = [
  DatabaseUnresponsiveError,
  BackendTerminatedError,
  BackendTerminatedUnexpectedlyError,
  ConnectionError,
  IdleTransactionTimeoutError,
  StatementCancelledError,
  TupleMovedToAnotherPartitionError,
]

/** Messages of errors without a class: of connections that are being closed, and of the pool of pg. */
const CONNECTION_MESSAGES =
  /^(Client is (pending destroy|destroyed|pending release|not acquired)\.|Cannot use released connection|timeout exceeded when trying to connect|Connection terminated due to connection timeout)$/

/** Messages of the pools of Slonik and pg once this process has closed them. */
const CLOSED_MESSAGES = /^(Connection pool (has|is being) .*|Cannot use a pool after calling end on the pool)$/

/** Classes of SQLSTATE that say that the statement or its data are wrong. */
const FAULTS = /^(0[A-Z]|2[0-57BDF]|3[489BF]|42|44|54|P0)/

/**
 * States of these classes that the deployment is to blame for: a read-only server, a transaction that the server ended for
 * its age, a missing grant, a pooler that mixes up the prepared statements of its clients.
 */
const NOT_FAULTS = new Set(['25006', '25P03', '25P04', '42501', '42P05'])

const fromDriver = new WeakSet<object>()

/** Marks an error as one that pg raised: its socket, its protocol, or the server. */
export function markDriverError(error: unknown): void {
  if (typeof error === 'object' && error !== null) fromDriver.add(error)
}

type Caused = Error & { code?: unknown; cause?: unknown }

/** The SQLSTATE of an error that the server reported, as pg or Slonik throws it; null for any other. */
export function sqlStateOf(error: unknown): string | null {
  for (const candidate of [error, (error as Caused | null)?.cause])
    if (candidate instanceof Error && 'severity' in candidate) return String((candidate as Caused).code)
  return null
}

/** Whether a statement failed because this process has closed its pool. */
export const isPoolClosed = (error: unknown): boolean => error instanceof Error && CLOSED_MESSAGES.test(error.message)

function ownKind(error: Error): DatabaseErrorKind | null {
  if (error instanceof StatementTimeoutError) return 'timeout'
  if (UNAVAILABLE.some(type => error instanceof type)) return 'unavailable'
  if (CONNECTION_MESSAGES.test(error.message) || isPoolClosed(error)) return 'unavailable'
  const state = sqlStateOf(error)
  if (state !== null) return FAULTS.test(state) && !NOT_FAULTS.has(state) ? 'fault' : 'unavailable'
  if (error instanceof SlonikError) return 'fault'
  return fromDriver.has(error) ? 'unavailable' : null
}

/** Longest chain of causes that is followed. */
const CAUSES = 8

/**
 * Classifies what was thrown; null where the database has no part in it. What was raised because of an error of the
 * database, such as the refusal of an operation that a tool called, is classified by its cause.
 */
export function databaseErrorKind(error: unknown): DatabaseErrorKind | null {
  let current = error
  for (let depth = 0; depth < CAUSES && current instanceof Error; depth++) {
    const kind = ownKind(current)
    if (kind !== null) return kind
    current = current.cause
  }
  return null
}

/** Whether an error comes of the database: its text speaks of statements and is for the log alone. */
export const isDatabaseError = (error: unknown): boolean => databaseErrorKind(error) !== null

/**
 * Whether work that failed with an error is to be tried again because of the database. What the work wrote may have been
 * committed.
 */
export function isTransient(error: unknown): boolean {
  const kind = databaseErrorKind(error)
  return kind === 'unavailable' || kind === 'timeout'
}
