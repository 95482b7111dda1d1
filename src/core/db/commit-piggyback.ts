import { AsyncLocalStorage } from 'node:async_hooks'
import pg from 'pg'

/**
 * The begin and the commit of a transaction travel with its first and its last statement: one of two statements takes two
 * round trips in place of four. The messages of both share a sync: behind a failure the server skips all up to it: no
 * statement runs outside of its transaction, and nothing is committed that failed.
 */
const BEGIN = { name: 'begin', text: 'START TRANSACTION' }
const COMMIT = { name: 'commit', text: 'COMMIT' }

/** What the client answers for an edge that it does not send by itself. */
const NOTHING = { command: '', rowCount: null, rows: [], fields: [] }

/** `held`: its begin is yet to be sent; `committed`: its commit was, and succeeded. */
type Phase = 'held' | 'open' | 'committed'
type Prepared = { name: string; values: unknown[] }
/** `ahead`: a statement that waits with the begin for the one that takes both along. */
type State = { phase: Phase; ahead?: Prepared }

type Edges = { begin: boolean; ahead?: Prepared; commit: boolean }

/** What this file uses of a connection of pg. */
type Wire = {
  parsedStatements: Record<string, string | undefined>
  bind(message: { statement: string; values: unknown[] }): void
  execute(message: object): void
  sync(): void
}

/** What this file uses of a query of pg, some of which its types leave out. */
type QueryOfPg = {
  prepare(wire: Wire): void
  handleDataRow(message: unknown): void
  handleCommandComplete(message: unknown, wire: Wire): void
}
type Callback = (error: Error | null, result: unknown) => void
const QueryOfPg = pg.Query as unknown as new (config: object, values: unknown, callback: Callback) => QueryOfPg

const ALONE: Edges = { begin: false, commit: false }

/** A statement with what it takes along. */
class JoinedQuery extends QueryOfPg {
  readonly #edges: Edges
  /** Statements whose answers come before its own. */
  readonly #before: number
  #completed = 0

  constructor(edges: Edges, config: object, callback: Callback) {
    super({ ...config, queryMode: 'extended' }, undefined, callback)
    this.#edges = edges
    this.#before = (edges.begin ? 1 : 0) + (edges.ahead ? 1 : 0)
  }

  override prepare(wire: Wire): void {
    if (this.#edges.begin) run(wire, BEGIN)
    if (this.#edges.ahead) run(wire, this.#edges.ahead)
    super.prepare(wire)
  }

  /** pg's own, with the commit before the sync. */
  _getRows(wire: Wire): void {
    wire.execute({})
    if (this.#edges.commit) run(wire, COMMIT)
    wire.sync()
  }

  override handleDataRow(message: unknown): void {
    if (this.#completed === this.#before) super.handleDataRow(message)
  }

  override handleCommandComplete(message: unknown, wire: Wire): void {
    if (this.#completed++ === this.#before) super.handleCommandComplete(message, wire)
  }
}

function run(wire: Wire, { name, values = [] }: { name: string; values?: unknown[] }): void {
  wire.bind({ statement: name, values })
  wire.execute({})
}

const states = new WeakMap<pg.Client, State>()

const isLast = new AsyncLocalStorage<true>()

/**
 * Sends the last statement of a transaction, which takes the commit along: where it succeeds, the transaction has. The
 * commit that the caller sends is answered without the server; a statement before it is refused.
 */
export const sendWithCommit = <T>(send: () => Promise<T>): Promise<T> => isLast.run(true, send)

const isAhead = new AsyncLocalStorage<true>()

/**
 * Sends the first statement of a transaction together with the next one, for settings of which only the effect is wanted: its
 * rows are not read, and its error is the next one's.
 */
export const sendAhead = (send: () => Promise<unknown>): Promise<unknown> => isAhead.run(true, send)

/** Both are prepared by the first transaction of a connection, which sends them by themselves. */
const arePrepared = (client: pg.Client): boolean => isPrepared(client, BEGIN) && isPrepared(client, COMMIT)

function isPrepared(client: pg.Client, { name }: { name?: string }): boolean {
  const { parsedStatements } = (client as unknown as { connection: Wire }).connection
  return name !== undefined && parsedStatements[name] !== undefined
}

/** Of a commit that the server answers as a rollback, because a statement had failed and its error was caught. */
const refusal = (result: unknown): Error | null =>
  (result as { command: string }).command === 'ROLLBACK'
    ? new Error('The transaction was rolled back: one of its statements had failed')
    : null

/** What a client sends in place of a statement: `answer`, if it sends nothing. */
type Plan = { answer: object } | { send(callback: Callback): object }

const answered: Plan = { answer: NOTHING }

/** Whether the begin of a transaction waits for its first statement. */
export const isBeginPending = (client: pg.Client): boolean => states.get(client)?.phase === 'held'

/** The plan of a statement that a client is asked for; null for one that goes out as it is. */
export function preparedPlanFor(
  client: pg.Client,
  config: string | { text: string; name?: string; values?: unknown[] },
  values: unknown,
): Plan | null {
  const text = typeof config === 'string' ? config : config.text
  const state = states.get(client)
  if (text === BEGIN.text) {
    const waits = arePrepared(client)
    states.set(client, { phase: waits ? 'held' : 'open' })
    return waits ? answered : { send: callback => new JoinedQuery(ALONE, BEGIN, callback) }
  }
  if (state === undefined) return null
  if (text === COMMIT.text || text === 'ROLLBACK') {
    states.delete(client)
    if (state.phase === 'held') return answered
    if (text === 'ROLLBACK') return null
    if (state.phase === 'committed') return answered
    return {
      send: callback => new JoinedQuery(ALONE, COMMIT, (error, result) => callback(error ?? refusal(result), result)),
    }
  }
  const { phase, ahead } = state
  if (phase === 'committed') throw new Error(`A statement behind the last one of its transaction: ${text}`)
  const statement = typeof config === 'string' ? { text, values: values as unknown[] } : config
  if (isAhead.getStore() && phase === 'held' && !ahead && isPrepared(client, statement)) {
    states.set(client, { phase, ahead: { name: statement.name as string, values: statement.values ?? [] } })
    return answered
  }
  const edges = { begin: phase === 'held', ahead, commit: isLast.getStore() === true && arePrepared(client) }
  states.set(client, { phase: 'open' })
  if (!edges.begin && !edges.commit) return null
  return {
    send: callback =>
      new JoinedQuery(edges, statement, (error, result) => {
        if (edges.commit && !error) states.set(client, { phase: 'committed' })
        callback(error, result)
      }),
  }
}
