import { inCell } from '../base/current-cell.ts'
import { settledWithin } from '../base/event-loop.ts'
import type { Services } from '../base/services.ts'
import { addressOf } from '../db/database-url.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { type CellRow, sealedForCell } from './cell-directory.ts'
import { type OpenServices, openServices } from './lifecycle.ts'
import { untilCallsEnd } from './running-calls.ts'

/**
 * What a process does in a cell: `drain` stops new work and waits for the running, at most `mostMs` before it aborts the work; `end`
 * ends the rest.
 */
export type Serving = { drain(mostMs?: number): Promise<unknown> | undefined; end(): Promise<unknown> }

/** Time that running work has before it is aborted in a cell that is moved, and time that the abort has. */
const MOVE_GRACE_MS = 500
const MOVE_ABORT_MS = 1500

type Opened = { url: string; services: OpenServices; serving: Serving | undefined }

type OpenOptions = Partial<Parameters<typeof openServices>[1]> & Pick<Parameters<typeof openServices>[1], 'role'>

/** Opens and closes the services of the cells besides home in this process, by the directory. */
export class OpenedCells {
  readonly #home: Services
  readonly #options: OpenOptions
  readonly #serve: (services: Services) => Promise<Serving | undefined>
  readonly #isServed: (row: CellRow) => boolean
  readonly #onCurrent: (name: string) => void
  readonly #opened = new Map<string, Opened>()
  /** Cells that are being opened or closed. */
  readonly #changing = new Map<string, Promise<void>>()
  #rows: readonly CellRow[] = []
  #isDraining = false

  /**
   * @param hooks.serve starts what this process does in a cell
   * @param hooks.isServed whether this process opens a cell
   * @param hooks.onCurrent is called when a cell that is not being moved was opened, could not be opened, or was closed
   */
  constructor(
    home: Services,
    options: OpenOptions,
    hooks: {
      serve: (services: Services) => Promise<Serving | undefined>
      isServed: (row: CellRow) => boolean
      onCurrent: (name: string) => void
    },
  ) {
    this.#home = home
    this.#options = options
    this.#serve = hooks.serve
    this.#isServed = hooks.isServed
    this.#onCurrent = hooks.onCurrent
  }

  /** Returns the services of a cell, null while it is not open. */
  servicesOf(name: string): Services | null {
    return this.#opened.get(name)?.services ?? null
  }

  /** Opens and closes cells by the rows of the directory. Returns the changes, which have started. */
  follow(rows: readonly CellRow[]): readonly Promise<void>[] {
    this.#rows = rows
    const names = new Set([...this.#opened.keys(), ...rows.map(({ name }) => name)])
    return [...names].map(name => {
      const running = this.#changing.get(name) ?? this.#followCell(name).finally(() => this.#changing.delete(name))
      this.#changing.set(name, running)
      return running
    })
  }

  /**
   * Stops new work in the cells and waits for the running, for the end of the process. Each cell has no more heartbeats from its end
   * on, which may be long before the end of others: without a row of them no other worker misses them.
   */
  async drain(): Promise<void> {
    this.#isDraining = true
    await Promise.all(
      [...this.#opened.values()].map(async ({ serving }) => {
        await serving?.drain()
        await serving?.end()
      }),
    )
  }

  /** Closes the services of the cells. */
  async close(): Promise<void> {
    await Promise.all([...this.#opened.keys()].map(name => this.#closeCell(name)))
  }

  /** Returns the row of a cell that this process opens; undefined for another one, or while it is moved. */
  #openRow(name: string): CellRow | undefined {
    return this.#rows.find(row => row.name === name && row.state !== 'moving' && this.#isServed(row))
  }

  /** Opens or closes a cell, until it is as the directory says. */
  async #followCell(name: string): Promise<void> {
    for (;;) {
      const row = this.#openRow(name)
      const isMoving = this.#rows.some(each => each.name === name && each.state === 'moving')
      if (row) await this.#reopen(row)
      else await this.#closeCell(name, isMoving)
      const now = this.#openRow(name)
      if (now?.url !== row?.url) continue
      if (row || !isMoving) this.#onCurrent(name)
      return
    }
  }

  /** Opens a cell, unless it is open at its URL. */
  async #reopen({ name, number, url: sealed }: CellRow): Promise<void> {
    const { log, secrets } = this.#home
    const url = secrets.open(sealed, sealedForCell(name))
    if (!url.ok) return log.error({ cell: name, reason: url.reason }, 'the URL of the cell cannot be decrypted')
    const opened = this.#opened.get(name)
    if (opened?.url === url.value || this.#isDraining) return
    if (opened) await this.#closeCell(name)
    try {
      const services = await withoutTenant(() => inCell(number, () => this.#open({ name, number }, url.value)))
      log.info({ cell: name, database: addressOf(services.config.DATABASE_URL) }, 'cell is open')
    } catch (error) {
      log.warn({ err: error, cell: name }, 'the cell cannot be opened')
    }
  }

  async #open(cell: { name: string; number: number }, url: string): Promise<Services> {
    const { log, config } = this.#home
    const services = await openServices(
      { ...config, DATABASE_URL: url, DATABASE_LISTEN_URL: url },
      { ...this.#options, log: log.child({ cell: cell.name }), of: { cell, home: this.#home } },
    )
    services.cells = this.#home.cells
    try {
      this.#opened.set(cell.name, { url, services, serving: await this.#serve(services) })
      return services
    } catch (error) {
      await services.close()
      throw error
    }
  }

  /** @param isMoved whether the cell must be closed soon: work that does not end is aborted, and continued at the target */
  async #closeCell(name: string, isMoved = false): Promise<void> {
    const opened = this.#opened.get(name)
    if (!opened) return
    this.#opened.delete(name)
    const { serving, services } = opened
    const within = (ms: number, work: Promise<unknown> | undefined) =>
      isMoved ? settledWithin(ms, Promise.resolve(work)) : work
    try {
      const calls = isMoved ? untilCallsEnd(services, MOVE_GRACE_MS) : null
      const drained = Promise.all([serving?.drain(isMoved ? MOVE_GRACE_MS : undefined), calls])
      await within(MOVE_GRACE_MS + MOVE_ABORT_MS, drained)
      await within(MOVE_ABORT_MS, serving?.end())
      await within(MOVE_ABORT_MS, services.close())
    } catch (error) {
      this.#home.log.warn({ err: error, cell: name }, 'the cell cannot be closed')
    }
  }
}
