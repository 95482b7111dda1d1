import { AsyncLocalStorage } from 'node:async_hooks'
import pg from 'pg'

/**
 * Sends BEGIN together with a transaction's first statement and COMMIT with its last: a transaction of two statements
 * takes two round trips instead of four. Each group of messages shares one Sync. After an error the server skips all
 * messages up to it, so no statement runs outside its transaction and no failed transaction is committed.
 */
const BEGIN = { name: 'begin', text: 'START TRANSACTION' }
const COMMIT = { name: 'commit', text: 'COMMIT' }

/** Result of a statement whose sending is deferred. */
const EMPTY_RESULT = { command: '', rowCount: null, rows: [], fields: [] }

/** `deferred`: BEGIN is not sent yet; `committed`: COMMIT was sent and succeeded. */
type Phase = 'deferred' | 'open' | 'committed'
type PreparedStatement = { name: string; values: unknown[] }
/** `ahead`: a statement deferred together with BEGIN until the next one. */
type State = { phase: Phase; ahead?: PreparedStatement }

/** Statements that are sent together with another one, before and after it. */
type Companions = { begin: boolean; ahead?: PreparedStatement; commit: boolean }

/** The internals of a pg connection that this file uses. */
type Wire = {
  parsedStatements: Record<string, string | undefined>
  bind(message: { statement: string; values: unknown[] }): void
  execute(message: object): void
  sync(): void
}

/** The internals of a pg query that this file uses. */
type QueryOfPg = {
  prepare(wire: Wire): void
  handleDataRow(message: unknown): void
  handleCommandComplete(message: unknown, wire: Wire): void
}
type Callback = (error: Error | null, result: unknown) => void
const QueryOfPg = pg.Query as unknown as new (config: object, values: unknown, callback: Callback) => QueryOfPg

const NO_COMPANIONS: Companions = { begin: false, commit: false }

/** A statement with its companions. */
class JoinedQuery extends QueryOfPg {
  readonly #companions: Companions
  /** Number of statements whose results precede this one's. */
  readonly #before: number
  #completed = 0

  constructor(companions: Companions, config: object, callback: Callback) {
    super({ ...config, queryMode: 'extended' }, undefined, callback)
    this.#companions = companions
    this.#before = (companions.begin ? 1 : 0) + (companions.ahead ? 1 : 0)
  }

  override prepare(wire: Wire): void {
    if (this.#companions.begin) bindAndExecute(wire, BEGIN)
    if (this.#companions.ahead) bindAndExecute(wire, this.#companions.ahead)
    super.prepare(wire)
  }

  /** pg's implementation, with COMMIT before the Sync. */
  _getRows(wire: Wire): void {
    wire.execute({})
    if (this.#companions.commit) bindAndExecute(wire, COMMIT)
    wire.sync()
  }

  override handleDataRow(message: unknown): void {
    if (this.#completed === this.#before) super.handleDataRow(message)
  }

  override handleCommandComplete(message: unknown, wire: Wire): void {
    if (this.#completed++ === this.#before) super.handleCommandComplete(message, wire)
  }
}

function bindAndExecute(wire: Wire, { name, values = [] }: { name: string; values?: unknown[] }): void {
  wire.bind({ statement: name, values })
  wire.execute({})
}

const states = new WeakMap<pg.Client, State>()

/** Whether a client is in a transaction, whose BEGIN may not be sent yet. */
export const isInTransaction = (client: pg.Client): boolean => states.has(client)

const isLast = new AsyncLocalStorage<true>()

/**
 * Sends the last statement of a transaction together with COMMIT: if it succeeds, the transaction is committed. The
 * caller's own COMMIT is then emptyPlan without the server; any other statement before it throws.
 */
export const sendWithCommit = <T>(send: () => Promise<T>): Promise<T> => isLast.run(true, send)

const isAhead = new AsyncLocalStorage<true>()

/**
 * Sends the first statement of a transaction together with the next one, for settings and locks: its rows are not read, and
 * its error is reported by the next statement.
 */
export const sendAhead = (send: () => Promise<unknown>): Promise<unknown> => isAhead.run(true, send)

/**
 * Whether BEGIN and COMMIT are prepared; the first transaction of a connection does that by sending them separately.
 */
const areEdgesPrepared = (client: pg.Client): boolean => isPrepared(client, BEGIN) && isPrepared(client, COMMIT)

function isPrepared(client: pg.Client, { name }: { name?: string }): boolean {
  const { parsedStatements } = (client as unknown as { connection: Wire }).connection
  return name !== undefined && parsedStatements[name] !== undefined
}

/** Returns an error if the server emptyPlan COMMIT with a rollback: a statement had failed and its error was caught. */
const rollbackError = (result: unknown): Error | null =>
  (result as { command: string }).command === 'ROLLBACK'
    ? new Error('The transaction was rolled back: one of its statements had failed')
    : null

/** How a client executes a statement: `answer` is a result without sending, `send` builds the query to submit. */
type Plan = { answer: object } | { send(callback: Callback): object }

const emptyPlan: Plan = { answer: EMPTY_RESULT }

/** Returns the plan of a statement, null if it is sent unchanged. */
export function preparedPlanFor(
  client: pg.Client,
  config: string | { text: string; name?: string; values?: unknown[] },
  values: unknown,
): Plan | null {
  const text = typeof config === 'string' ? config : config.text
  const state = states.get(client)
  if (text === BEGIN.text) {
    const isDeferred = areEdgesPrepared(client)
    states.set(client, { phase: isDeferred ? 'deferred' : 'open' })
    return isDeferred ? emptyPlan : { send: callback => new JoinedQuery(NO_COMPANIONS, BEGIN, callback) }
  }
  if (state === undefined) return null
  if (text === COMMIT.text || text === 'ROLLBACK') {
    states.delete(client)
    if (state.phase === 'deferred') return emptyPlan
    if (text === 'ROLLBACK') return null
    if (state.phase === 'committed') return emptyPlan
    return {
      send: callback =>
        new JoinedQuery(NO_COMPANIONS, COMMIT, (error, result) => callback(error ?? rollbackError(result), result)),
    }
  }
  const { phase, ahead } = state
  if (phase === 'committed') throw new Error(`statement after the last statement of its transaction: ${text}`)
  const statement = typeof config === 'string' ? { text, values: values as unknown[] } : config
  if (isAhead.getStore() && phase === 'deferred' && !ahead && isPrepared(client, statement)) {
    states.set(client, { phase, ahead: { name: statement.name as string, values: statement.values ?? [] } })
    return emptyPlan
  }
  const companions = {
    begin: phase === 'deferred',
    ahead,
    commit: isLast.getStore() === true && areEdgesPrepared(client),
  }
  states.set(client, { phase: 'open' })
  if (!companions.begin && !companions.commit) return null
  return {
    send: callback =>
      new JoinedQuery(companions, statement, (error, result) => {
        if (companions.commit && !error) states.set(client, { phase: 'committed' })
        callback(error, result)
      }),
  }
}
