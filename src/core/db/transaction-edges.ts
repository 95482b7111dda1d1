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
type State = 'held' | 'open' | 'committed'

type Edges = { begin: boolean; commit: boolean }

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
  handleCommandComplete(message: unknown, wire: Wire): void
}
type Callback = (error: Error | null, result: unknown) => void
const QueryOfPg = pg.Query as unknown as new (config: object, values: unknown, callback: Callback) => QueryOfPg

const ALONE: Edges = { begin: false, commit: false }

/** A statement with what it takes along. */
class JoinedQuery extends QueryOfPg {
  readonly #edges: Edges
  #completed = 0

  constructor(edges: Edges, config: object, callback: Callback) {
    super({ ...config, queryMode: 'extended' }, undefined, callback)
    this.#edges = edges
  }

  override prepare(wire: Wire): void {
    if (this.#edges.begin) run(wire, BEGIN)
    super.prepare(wire)
  }

  /** pg's own, with the commit before the sync. */
  _getRows(wire: Wire): void {
    wire.execute({})
    if (this.#edges.commit) run(wire, COMMIT)
    wire.sync()
  }

  override handleCommandComplete(message: unknown, wire: Wire): void {
    const own = this.#edges.begin ? 1 : 0
    if (this.#completed++ === own) super.handleCommandComplete(message, wire)
  }
}

function run(wire: Wire, { name }: { name: string }): void {
  wire.bind({ statement: name, values: [] })
  wire.execute({})
}

const states = new WeakMap<pg.Client, State>()

const isLast = new AsyncLocalStorage<true>()

/**
 * Sends the last statement of a transaction, which takes the commit along: where it succeeds, the transaction has. The
 * commit that the caller sends is answered without the server; a statement before it is refused.
 */
export const sendLast = <T>(send: () => Promise<T>): Promise<T> => isLast.run(true, send)

/** Both are prepared by the first transaction of a connection, which sends them by themselves. */
function arePrepared(client: pg.Client): boolean {
  const { parsedStatements } = (client as unknown as { connection: Wire }).connection
  return parsedStatements[BEGIN.name] !== undefined && parsedStatements[COMMIT.name] !== undefined
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
export const isHeld = (client: pg.Client): boolean => states.get(client) === 'held'

/** The plan of a statement that a client is asked for; null for one that goes out as it is. */
export function planOf(client: pg.Client, config: string | { text: string }, values: unknown): Plan | null {
  const text = typeof config === 'string' ? config : config.text
  const state = states.get(client)
  if (text === BEGIN.text) {
    const waits = arePrepared(client)
    states.set(client, waits ? 'held' : 'open')
    return waits ? answered : { send: callback => new JoinedQuery(ALONE, BEGIN, callback) }
  }
  if (state === undefined) return null
  if (text === COMMIT.text || text === 'ROLLBACK') {
    states.delete(client)
    if (state === 'held') return answered
    if (text === 'ROLLBACK') return null
    if (state === 'committed') return answered
    return {
      send: callback => new JoinedQuery(ALONE, COMMIT, (error, result) => callback(error ?? refusal(result), result)),
    }
  }
  if (state === 'committed') throw new Error(`A statement behind the last one of its transaction: ${text}`)
  const edges = { begin: state === 'held', commit: isLast.getStore() === true && arePrepared(client) }
  states.set(client, 'open')
  if (!edges.begin && !edges.commit) return null
  const statement = typeof config === 'string' ? { text, values } : config
  return {
    send: callback =>
      new JoinedQuery(edges, statement, (error, result) => {
        if (edges.commit && !error) states.set(client, 'committed')
        callback(error, result)
      }),
  }
}
