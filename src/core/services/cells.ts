import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type CellIdentity, inCell } from '../base/current-cell.ts'
import { AppError } from '../base/errors.ts'
import { settledWithin } from '../base/event-loop.ts'
import { cellOfId, cellOfToken, isId, isToken } from '../base/ids.ts'
import { exclusiveLoop } from '../base/loop.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import { clearNotifiedCaches } from '../db/notified-cache.ts'
import { sealedColumn } from '../db/sealed.ts'
import { idStatement, type Queryable, sql } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import type { SealedFor } from '../secrets/secretbox.ts'
import { findItem, findToken } from './held-items.ts'
import { type OpenServices, openServices } from './lifecycle.ts'

declare module '../base/services.ts' {
  interface Services {
    /** The cell whose database these services use; null in a deployment without cells. */
    cell: CellIdentity | null
    /** The cells of the deployment; null without cells. */
    cells: Cells | null
  }
}

/** Name and number of the first cell. */
export const HOME: CellIdentity = { name: 'home', number: 0 }

/** Runs work in the cell of services, if the deployment has cells. */
export const inCellOf = <T>({ cell }: Pick<Services, 'cell'>, work: () => T): T =>
  cell ? inCell(cell.number, work) : work()

/** Returns the services of the cell that has an item: these in a deployment without cells. Raises CELL_UNAVAILABLE. */
export const servicesOfId = (services: Services, id: string): Services | Promise<Services> =>
  services.cells?.holding([id]) ?? services

const CHANNEL = 'muster_cells'

/** Time between two tries to open a cell, and between two reads of the directory without a notification. */
const PERIOD_MS = 5000

/** Time after which a cell whose database does not answer is unavailable. */
export const CELL_WAIT_MS = 4000

/** Data that the URL of a cell is sealed with. */
export const sealedForCell = (name: string): SealedFor => ({ kind: 'cell', id: name, project_id: null })

export const sealedCellUrls = sealedColumn({
  table: 'cells',
  column: 'url',
  kind: 'cell',
  id: sql.fragment`name`,
  project: sql.fragment`null::text`,
})

export const CELL_STATES = ['open', 'closed', 'moving', 'down'] as const

const CellRow = z.strictObject({ name: z.string(), number: z.int(), url: z.string(), state: z.enum(CELL_STATES) })

const cellRow = sql.type(CellRow)

/** A row of the directory; `url` is sealed. */
export type CellRow = z.infer<typeof CellRow>

/** Reads the directory: the cells besides home, in the order of their numbers. */
export const readCells = async ({ pool }: Pick<Services, 'pool'>): Promise<readonly CellRow[]> =>
  pool.any(cellRow`select name, number, url, state from cells order by number`)

const Exception = z.strictObject({
  project_id: z.string(),
  cell: z.string().nullable(),
  moving_to: z.string().nullable(),
  numbers: z.array(z.int()),
})

const exception = sql.type(Exception)

/** A project that is or has been in another cell than its ID says. */
type Exception = z.output<typeof Exception>

/** A cell of the deployment. */
export type Cell = CellIdentity & {
  /** Whether it takes new projects (`open`), none (`closed`), or no requests (`moving`, `down`). */
  state: CellRow['state']
  /** Null while its database does not answer. */
  services: Services | null
}

/**
 * What a process does in a cell: `drain` stops new work and waits for the running, at most `mostMs` before it aborts the work; `end`
 * ends the rest.
 */
export type Serving = { drain(mostMs?: number): Promise<unknown> | undefined; end(): Promise<unknown> }

/** Time that running work has before it is aborted in a cell that is moved, and time that the abort has. */
const MOVE_GRACE_MS = 500
const MOVE_ABORT_MS = 1500

/** Longest time for which a request waits for a cell that is moved. */
const HOLD_MS = 5000

const runningCalls = processSingleton(() => ({ count: 0 }))

/** Runs a call, whose end a move of its cell waits for. */
export async function asRunningCall<T>(services: Services, work: () => Promise<T>): Promise<T> {
  const calls = runningCalls(services)
  calls.count++
  try {
    return await work()
  } finally {
    calls.count--
  }
}

async function untilCallsEnd(services: Services): Promise<void> {
  const deadline = performance.now() + MOVE_GRACE_MS
  while (runningCalls(services).count > 0 && performance.now() < deadline) await sleep(CALLS_POLL_MS)
}

const CALLS_POLL_MS = 20

type Opened = { url: string; services: OpenServices; serving: Serving | undefined }

export const unavailable = ({ name }: Pick<Cell, 'name'>, cause?: unknown): AppError =>
  new AppError('CELL_UNAVAILABLE', { cause, meta: { cell: name }, headers: { 'Retry-After': '5' } })

/** Callers without rights on the project get it too, so it names neither the project nor the cell. */
const unavailableMove = (): AppError =>
  new AppError('CELL_UNAVAILABLE', {
    message: 'A project is being moved to another cell',
    headers: { 'Retry-After': '5' },
  })

/**
 * Refuses while a project is on the way between cells: none of them has its rows then.
 * @param db home
 * @throws CELL_UNAVAILABLE
 */
export async function requireNoMoves({ cells }: Pick<Services, 'cells'>, db: Queryable): Promise<void> {
  const moving = idStatement`select project_id as id from project_cells where moving_to is not null`
  if (cells && (await db.exists(moving))) throw unavailableMove()
}

/** Most IDs of a request by which its cell is found. */
const MAX_CONSIDERED = 8

/** Positions of items that are kept until the directory changes. */
const MAX_HELD = 10_000

/**
 * The cells of a deployment and their services in this process. The directory is in the first cell; cells that it gains, loses or
 * moves are opened and closed without a restart, and a cell whose database does not answer is tried again.
 */
export class Cells {
  readonly home: Services
  readonly #role: 'web' | 'worker' | 'cli'
  readonly #serve: (services: Services) => Promise<Serving | undefined>
  readonly #only: readonly string[] | null
  readonly #options: Partial<Parameters<typeof openServices>[1]>
  readonly #opened = new Map<string, Opened>()
  /** Cells that are being opened or ended. */
  readonly #changing = new Map<string, Promise<void>>()
  /** Cells that are being moved, until this process has opened them again. */
  readonly #moving = new Map<string, PromiseWithResolvers<void>>()
  readonly #refresh: () => Promise<void>
  #rows: readonly CellRow[] = []
  #exceptions = new Map<string, Exception>()
  /** Projects that have been in the cell of a number, with IDs of it, and are in another one. */
  #elsewhere = new Map<number, Exception[]>()
  /** Names of the cells that have items, by their IDs. */
  #held = new LRUCache<string, string>({ max: MAX_HELD })
  #exceptionsText = ''
  #timer: NodeJS.Timeout | undefined
  #unlisten: (() => void) | undefined
  #closing = false
  #isStale = false

  /**
   * @param options.serve starts what this process does in each cell besides home
   * @param options.only names of the cells that are opened, default all
   */
  constructor(
    home: Services,
    options: {
      role: 'web' | 'worker' | 'cli'
      serve?: (services: Services) => Promise<Serving>
      only?: readonly string[]
      /** How services are opened, besides. */
      options?: Partial<Parameters<typeof openServices>[1]>
    },
  ) {
    this.home = home
    this.#role = options.role
    this.#serve = options.serve ?? (async () => undefined)
    this.#only = options.only ?? null
    this.#options = options.options ?? {}
    this.#refresh = exclusiveLoop('cells', { periodMs: PERIOD_MS, log: home.log }, () => this.#readAll())
  }

  /** Opens the cells; those whose database does not answer later. */
  async start(): Promise<void> {
    this.home.cell = HOME
    this.home.cells = this
    const again = () => {
      this.#isStale = true
      void this.#refresh()
    }
    const unlisten = this.home.notifications.listen(CHANNEL, again, { onReconnect: again })
    this.#unlisten = unlisten
    await unlisten.ready
    // A database that does not answer delays neither the other cells nor the start.
    await settledWithin(CELL_WAIT_MS, Promise.all(await this.#read()))
    this.#timer = setInterval(again, PERIOD_MS)
    this.#timer.unref()
  }

  /** Returns all cells, home first. */
  all(): Cell[] {
    const others = this.#rows.map(({ name, number, state }) => ({
      name,
      number,
      state,
      services: this.#opened.get(name)?.services ?? null,
    }))
    return [{ ...HOME, state: 'open', services: this.home }, ...others]
  }

  /** Returns the cells that this process opens, home first. */
  served(): Cell[] {
    return this.all().filter(cell => cell.name === HOME.name || this.#isServed(cell))
  }

  /** Returns the cell of a name, undefined for an unknown one. */
  named(name: string): Cell | undefined {
    return this.all().find(cell => cell.name === name)
  }

  /** Returns the services of the cell of a number, home if no cell has it. Raises CELL_UNAVAILABLE. */
  numbered(number: number): Services {
    if (number === 0) return this.home
    const cell = this.all().find(each => each.number === number)
    return cell ? requireCell(cell) : this.home
  }

  /** Returns the services of the cell in which a project is. Raises CELL_UNAVAILABLE, also while it is being moved. */
  ofProject(id: string): Services {
    const exception = this.#exceptions.get(id)
    if (!exception) return this.numbered(cellOfId(id))
    if (exception.moving_to !== null) throw unavailableMove()
    return this.#ofException(exception)
  }

  /**
   * Returns the services of the cell that has an item, by the first of some values that is an ID or a token: of the cell that made
   * it, unless a project of that cell has been moved. Then the cells are queried, once per item. Raises CELL_UNAVAILABLE.
   */
  holding(values: readonly unknown[], { tokens = false } = {}): Services | Promise<Services> {
    const named = values
      .filter(value => typeof value === 'string')
      .filter(text => isId(text) || (tokens && isToken(text)))
    const numberOf = (text: string) => cellOfId(text) || (tokens ? cellOfToken(text) : 0)
    const first = named.find(text => numberOf(text) !== 0)
    const considered = first === undefined ? named.slice(0, MAX_CONSIDERED) : [first]
    if (!considered.some(text => this.#elsewhere.has(numberOf(text))))
      return first === undefined ? this.home : this.numbered(numberOf(first))
    return this.#find(considered, numberOf)
  }

  /** Returns the cells that may have the keys that the cell of a number made, this one first. */
  sharing(number: number): Cell[] {
    const own = this.all().find(each => each.number === number) ?? this.all()[0]
    const others = (this.#elsewhere.get(number) ?? []).map(({ cell }) => this.named(cell ?? HOME.name))
    const found = [own, ...others.filter(cell => cell !== undefined)]
    return found.filter(({ name }, index) => found.findIndex(each => each.name === name) === index)
  }

  /** Raises CELL_UNAVAILABLE if something that the cell of a number made may belong to a project that is being moved. */
  requireSettled(number: number): void {
    const moving = this.#elsewhere.get(number)?.find(({ moving_to }) => moving_to !== null)
    if (moving) throw unavailableMove()
  }

  #ofException({ cell }: Exception): Services {
    const found = cell === null ? undefined : this.named(cell)
    return found ? requireCell(found) : this.home
  }

  /** Queries the cells for items until one is in a cell besides home. */
  async #find(texts: readonly string[], numberOf: (text: string) => number): Promise<Services> {
    let missing: unknown
    for (const text of texts) {
      const name = await this.#findCell(text, numberOf(text)).catch(error => {
        missing ??= error
      })
      const cell = name === undefined ? undefined : this.named(name)
      if (cell && (cell.number !== 0 || texts.length === 1)) return requireCell(cell)
    }
    if (missing) throw missing
    return this.numbered(numberOf(texts[0]))
  }

  /** Returns the name of the cell that has an item; undefined if none has. Raises CELL_UNAVAILABLE. */
  async #findCell(text: string, number: number): Promise<string | undefined> {
    const held = this.#held
    const known = held.get(text)
    if (known !== undefined) return known
    let missing: unknown
    for (const cell of this.sharing(number))
      try {
        if (!(await this.#ask(cell, text))) continue
        held.set(text, cell.name)
        return cell.name
      } catch (error) {
        missing ??= error
      }
    if (missing) throw missing
    this.requireSettled(number)
    return undefined
  }

  /** Whether a cell has an item. Raises CELL_UNAVAILABLE if its project is being moved. */
  async #ask(cell: Cell, text: string): Promise<boolean> {
    const services = requireCell(cell)
    const project = await (isId(text) ? findItem : findToken)(services, text)
    const exception = typeof project === 'string' ? this.#exceptions.get(project) : undefined
    if (exception && exception.moving_to !== null) throw unavailableMove()
    return project !== undefined
  }

  /** Stops new work in the cells and waits for the running, for the end of the process. */
  async drain(): Promise<void> {
    this.#closing = true
    clearInterval(this.#timer)
    this.#unlisten?.()
    await Promise.all([...this.#opened.values()].map(({ serving }) => serving?.drain()))
  }

  /** Closes the services of the cells. */
  async close(): Promise<void> {
    await this.drain()
    await Promise.all([...this.#opened.keys()].map(name => this.#end(name)))
  }

  /** Waits until no cell is being moved, at most HOLD_MS. */
  async untilMoved(): Promise<void> {
    if (this.#moving.size > 0) await this.#hold([...this.#moving.values()], HOLD_MS)
  }

  /** Runs work that finds the cell of a request: again after the move of a cell, for which it waits at most HOLD_MS. */
  async afterMoves<T>(work: () => T | Promise<T>): Promise<T> {
    const deadline = performance.now() + HOLD_MS
    for (;;) {
      try {
        return await work()
      } catch (error) {
        const isUnavailable = error instanceof AppError && error.code === 'CELL_UNAVAILABLE'
        const move = isUnavailable && this.#moving.get(String(error.meta?.cell))
        if (!move || performance.now() >= deadline) throw error
        await this.#hold([move], deadline - performance.now())
      }
    }
  }

  #hold(moves: readonly PromiseWithResolvers<void>[], ms: number): Promise<unknown> {
    return settledWithin(ms, Promise.all(moves.map(({ promise }) => promise)))
  }

  #isServed({ name, state }: Pick<CellRow, 'name' | 'state'>): boolean {
    return state !== 'down' && (this.#only?.includes(name) ?? true)
  }

  /** Returns the row of a cell that this process opens; undefined for another one, or while it is moved. */
  #openRow(name: string): CellRow | undefined {
    return this.#rows.find(row => row.name === name && row.state !== 'moving' && this.#isServed(row))
  }

  /** Reads the directory again if it has changed during the read. */
  async #readAll(): Promise<void> {
    do {
      this.#isStale = false
      await this.#read()
    } while (this.#isStale && !this.#closing)
  }

  /** Reads the directory. Returns the changes of cells that it starts. */
  async #read(): Promise<readonly Promise<void>[]> {
    const { pool } = this.home
    const [rows, exceptions] = await withoutTenant(() =>
      Promise.all([
        readCells(this.home),
        pool.any(exception`select project_id, cell, moving_to, numbers from project_cells`),
      ]),
    )
    this.#exceptions = new Map(exceptions.map(each => [each.project_id, each]))
    this.#rows = rows
    this.#listElsewhere(exceptions)
    for (const { name, state } of rows)
      if (state === 'moving' && !this.#moving.has(name)) this.#moving.set(name, Promise.withResolvers())
    const names = new Set([...this.#opened.keys(), ...rows.map(({ name }) => name)])
    return [...names].map(name => {
      const running = this.#changing.get(name) ?? this.#follow(name).finally(() => this.#changing.delete(name))
      this.#changing.set(name, running)
      return running
    })
  }

  /** Opens or ends a cell, until it is as the directory says. */
  async #follow(name: string): Promise<void> {
    for (;;) {
      const row = this.#openRow(name)
      const isMoving = this.#rows.some(each => each.name === name && each.state === 'moving')
      if (row) await this.#reopen(row)
      else await this.#end(name, isMoving)
      const now = this.#openRow(name)
      if (now?.url !== row?.url) continue
      if (row || !isMoving) {
        this.#moving.get(name)?.resolve()
        this.#moving.delete(name)
      }
      return
    }
  }

  #listElsewhere(exceptions: readonly Exception[]): void {
    const numberOf = (name: string | null) => this.#rows.find(row => row.name === name)?.number ?? HOME.number
    const elsewhere = new Map<number, Exception[]>()
    for (const each of exceptions)
      for (const number of each.numbers)
        if (number !== numberOf(each.cell) || each.moving_to !== null)
          elsewhere.set(number, [...(elsewhere.get(number) ?? []), each])
    this.#elsewhere = elsewhere
    const text = JSON.stringify(exceptions)
    // Not cleared: a running query stores its answer in the former one.
    if (text !== this.#exceptionsText) this.#held = new LRUCache({ max: MAX_HELD })
    // A project that comes back to a cell has changed in the other.
    if (text !== this.#exceptionsText && this.#exceptionsText !== '') clearNotifiedCaches()
    this.#exceptionsText = text
  }

  async #reopen({ name, number, url }: CellRow): Promise<void> {
    const { log, secrets } = this.home
    const plain = secrets.open(url, sealedForCell(name))
    if (!plain.ok) return log.error({ cell: name, reason: plain.reason }, 'the URL of the cell cannot be decrypted')
    const opened = this.#opened.get(name)
    if (opened?.url === plain.value || this.#closing) return
    if (opened) await this.#end(name)
    try {
      await withoutTenant(() =>
        inCell(number, async () => {
          const config = { ...this.home.config, DATABASE_URL: plain.value, DATABASE_LISTEN_URL: plain.value }
          const of = { cell: { name, number }, home: this.home }
          const services = await openServices(config, {
            ...this.#options,
            log: log.child({ cell: name }),
            role: this.#role,
            of,
          })
          services.cells = this
          try {
            this.#opened.set(name, { url: plain.value, services, serving: await this.#serve(services) })
          } catch (error) {
            await services.close()
            throw error
          }
        }),
      )
      log.info({ cell: name, database: addressOf(plain.value) }, 'cell is open')
    } catch (error) {
      log.warn({ err: error, cell: name }, 'the cell cannot be opened')
    }
  }

  /** @param isMoved whether the cell must be closed soon: work that does not end is aborted, and continued at the target */
  async #end(name: string, isMoved = false): Promise<void> {
    const opened = this.#opened.get(name)
    if (!opened) return
    this.#opened.delete(name)
    const { serving, services } = opened
    const within = (ms: number, work: Promise<unknown> | undefined) =>
      isMoved ? settledWithin(ms, Promise.resolve(work)) : work
    try {
      const calls = isMoved ? untilCallsEnd(services) : null
      const drained = Promise.all([serving?.drain(isMoved ? MOVE_GRACE_MS : undefined), calls])
      await within(MOVE_GRACE_MS + MOVE_ABORT_MS, drained)
      await within(MOVE_ABORT_MS, serving?.end())
      await within(MOVE_ABORT_MS, services.close())
    } catch (error) {
      this.home.log.warn({ err: error, cell: name }, 'the cell cannot be closed')
    }
  }
}

/** Returns the services of a cell. Raises CELL_UNAVAILABLE. */
export function requireCell(cell: Cell): Services {
  if (!cell.services || cell.state === 'down' || cell.state === 'moving') throw unavailable(cell)
  return cell.services
}
