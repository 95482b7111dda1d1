import { ConfigError } from '#core/base/config.ts'
import { requireConnections } from '#core/db/connections.ts'
import { addressOf, parseDatabaseUrl, withParameters } from '#core/db/database-url.ts'
import { HOME } from '#core/services/cell.ts'
import {
  CellRefusal,
  type DirectoryCell,
  findCell,
  listDirectory,
  NO_KEY,
  requireEmpty,
  requireName,
  requireUnused,
  setCellState,
  writeCell,
} from '#core/services/cell-directory.ts'
import { describeCells, readCellFacts } from '#core/services/cell-facts.ts'
import { findMove } from '#core/services/cell-moves.ts'
import { type CopiesFacts, startCopies, stopCopies } from '#core/services/copies.ts'
import type { OpenServices } from '#core/services/lifecycle.ts'
import { migrateCell } from '#core/services/migrate-cells.ts'
import { cancelMove, moveCell, requireMovableCell } from '#core/services/move-cell.ts'
import { raiseUnknownCell } from './cell-services.ts'
import { checkCell, listChosenCells, withCellPool } from './doctor-cells.ts'
import { checkMigrations } from './doctor-database.ts'
import { withServices } from './environment.ts'
import { CommandError, describeError, print, printChecks, printJson, printProgress, table } from './output.ts'

type Options = { data: string; json?: boolean }

/** Runs a command on the directory of the deployment. Its refusals are errors of the command. */
export const onDirectory = (data: string, work: (home: OpenServices) => Promise<void>): Promise<void> =>
  withServices(data, async home => {
    const { status } = await checkMigrations(home.pool)
    if (status === 'fail') throw new CommandError('the database of home is not migrated', 'Run muster migrate.')
    await work(home).catch(error => {
      throw error instanceof CellRefusal ? new CommandError(error.message) : error
    })
  })

/** `muster cells list`. */
export const listCommand = ({ data, json }: Options): Promise<void> =>
  onDirectory(data, async home => {
    const others = await listDirectory(home.pool, home)
    const described = await describeCells(home, others, ({ url }, read) => withCellPool(url, read))
    const cells = described.map(({ failure, ...facts }) => ({
      ...facts,
      error: failure === null ? null : describeError(failure),
    }))
    if (json) return printJson(cells)
    const rows = cells.map(cell => [
      cell.name,
      cell.number,
      cell.state,
      cell.address ?? '-',
      cell.projects ?? '-',
      cell.bytes === null ? '-' : `${(cell.bytes / 1024 ** 2).toFixed(1)} MiB`,
      cell.release ?? '-',
      cell.copies === null ? '-' : `by ${cell.copies}`,
      lagText(cell),
      cell.error ?? 'yes',
    ])
    const titles = ['name', 'number', 'state', 'address', 'projects', 'size', 'release', 'copies', 'lag', 'answers']
    print(table(titles, rows, ''))
  })

/** How late the copies of a cell are. */
function lagText({ copies_connected, lag_bytes, lag_seconds }: CopiesFacts): string {
  if (lag_bytes === null) return '-'
  const parts = [
    `${lag_bytes} bytes`,
    lag_seconds !== null && `${lag_seconds.toFixed(1)} s`,
    !copies_connected && 'not connected',
  ]
  return parts.filter(Boolean).join(', ')
}

type AddOptions = Options & { url?: string; schema?: string }

/**
 * `muster cells add`: migrates a database and makes it a cell. Can be repeated after a failure.
 * @throws CommandError if a new cell cannot have the name or the database
 */
export const addCommand = (name: string, { data, json, ...options }: AddOptions): Promise<void> =>
  onDirectory(data, async home => {
    const { config, pool } = home
    const url = urlOf(options)
    const address = addressOf(url)
    requireName(name)
    await requireUnused(pool, home, name)
    await requireUsable(url)
    await withCellPool(url, async target => {
      await requireEmpty(home, target, name)
      const onWait = () => printProgress('another process migrates; waiting for its lock')
      const ran = await migrateCell(config, url, { onWait }).catch(error => {
        throw new CommandError(`the database ${address} cannot be migrated: ${describeError(error)}`)
      })
      const { number } = await writeCell(home, target, { name, url })
      await startCopies(home, { name, number, url }).catch(error => {
        throw new CommandError(
          `cell ${name} is down: users and policies cannot be copied to ${address}: ${describeError(error)}`,
          'Repeat muster cells add once this is corrected.',
        )
      })
      await setCellState(home, name, 'open', ['down'])
      if (json) return printJson({ name, number, address, state: 'open', ran })
      print(`cell ${name}, number ${number}, is open at ${address}`)
    })
    if (!config.CELLS) printProgress('Set CELLS=true in all processes, which then serve its projects.')
  })

/** @throws CommandError if a database does not permit the connections of a cell */
const requireUsable = (url: string): Promise<void> =>
  requireConnections({ DATABASE_URL: url, DATABASE_LISTEN_URL: url }).catch(error => {
    const reason = error instanceof ConfigError ? error.problems[0].message : describeError(error)
    throw new CommandError(`the database ${addressOf(url)} cannot be a cell: ${reason}`)
  })

/** @throws CommandError without a usable URL, in which case the message has no part of it */
function urlOf({ url = process.env.CELL_URL, schema }: Pick<AddOptions, 'url' | 'schema'>): string {
  if (!url) throw new CommandError('no URL given', 'Set CELL_URL, or pass --url.')
  try {
    const full = schema === undefined ? url : withParameters(url, { schema })
    parseDatabaseUrl(full)
    return full
  } catch (error) {
    throw new CommandError(`the URL of the cell ${describeError(error)}`)
  }
}

/** @throws CommandError if no cell besides home has the name */
const requireCell = async (home: OpenServices, name: string): Promise<DirectoryCell> =>
  (await findCell(home.pool, home, name)) ?? raiseUnknownCell(name)

/** `muster cells close` and `open`. */
export const stateCommand = (name: string, state: 'closed' | 'open', { data, json }: Options): Promise<void> =>
  onDirectory(data, async home => {
    if (name === HOME.name) throw new CommandError('home is always open')
    const cell = await requireCell(home, name)
    if (!(await setCellState(home, name, state, ['open', 'closed'])))
      throw new CommandError(
        `cell ${name} is ${cell.state}`,
        { down: 'Repeat muster cells add.', moving: 'Repeat muster cells move, or pass --cancel to it.' }[
          cell.state as string
        ],
      )
    if (json) return printJson({ name, state })
    print(state === 'open' ? `cell ${name} takes new projects` : `cell ${name} takes no new projects`)
  })

type RemoveOptions = Options & { force?: boolean }

/**
 * `muster cells remove`: ends the service of a cell and its copies, whether it answers or not. Its row remains, as its number is in
 * IDs; `muster cells add` restores it.
 * @throws CommandError if it answers and has projects, without `force`
 */
export const removeCommand = (name: string, { data, json, force }: RemoveOptions): Promise<void> =>
  onDirectory(data, async home => {
    if (name === HOME.name) throw new CommandError('home cannot be removed')
    const { number, url } = await requireCell(home, name)
    if (await findMove(home, name))
      throw new CommandError(`cell ${name} is being moved`, 'Repeat muster cells move, or pass --cancel to it.')
    if (url === null) throw new CommandError(`cell ${name} cannot be removed: ${NO_KEY}`)
    const facts = force ? null : await withCellPool(url, readCellFacts).catch(() => null)
    if (facts && facts.projects > 0)
      throw new CommandError(
        `cell ${name} answers and has projects: ${facts.projects}`,
        'Pass --force to make them unavailable.',
      )
    // Before the copies stop, so that no sweep starts them again.
    await setCellState(home, name, 'down', ['open', 'closed', 'moving', 'down'])
    await stopCopies(home, { name, number, url })
    if (json) return printJson({ name, number, state: 'down' })
    print(`cell ${name} is down, and home does not copy to it`)
  })

type MoveOptions = AddOptions & { cancel?: boolean }

/**
 * `muster cells move`: moves a cell to an empty database while it is in use. Can be repeated after an interruption, and cancelled.
 * @throws CommandError if the cell or the database does not permit it
 */
export const moveCommand = (name: string, { data, json, cancel, ...options }: MoveOptions): Promise<void> =>
  onDirectory(data, async home => {
    if (cancel) {
      const { state } = await cancelMove(home, name)
      if (json) return printJson({ name, state })
      return print(`the move of cell ${name} is cancelled; the cell is ${state} where it was`)
    }
    const url = urlOf(options)
    await requireMovableCell(home, name)
    await requireUsable(url)
    const moved = await moveCell(home, name, url, printProgress)
    if (json) return printJson(moved)
    const { from, to, state, pause_ms, tables, rows, bytes, remaining_schemas } = moved
    print(`cell ${name} is ${state} at ${to}`)
    print(`${tables} tables, about ${rows} rows, ${(bytes / 1024 ** 2).toFixed(1)} MiB; paused for ${pause_ms} ms`)
    print(`${from} keeps the rows of before and refuses writes. When they are not needed, drop its schemas:`)
    for (const schema of remaining_schemas) print(`  drop schema ${schema} cascade;`)
  })

/** `muster cells check`: sets exit code 1 if a check fails. */
export const checkCommand = (name: string | undefined, { data, json }: Options): Promise<void> =>
  onDirectory(data, async home => {
    const cells = await listChosenCells(home, name)
    const checks = await Promise.all(
      cells.map(async cell =>
        (await checkCell(home.config, cell)).map(check => ({ ...check, name: `${cell.name} ${check.name}` })),
      ),
    )
    printChecks(checks.flat(), { json })
  })
