import type { Config } from '#core/base/config.ts'
import { addressOf } from '#core/db/database-url.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { secretBoxOf } from '#core/secrets/secretbox.ts'
import { HOME } from '#core/services/cell.ts'
import { listDirectory, NO_KEY } from '#core/services/cell-directory.ts'
import { copiesState } from '#core/services/copies.ts'
import type { OpenServices } from '#core/services/lifecycle.ts'
import { raiseUnknownCell } from './cell-services.ts'
import { checkConnections, checkKeys, checkMigrations, checkMonths, checkServer } from './doctor-database.ts'
import { checkAddresses, checkBrowserKeys, checkQueues } from './doctor-work.ts'
import { commandLog } from './environment.ts'
import { type Check, describeError } from './output.ts'

/** A cell of the deployment as commands see it. `url` is null if no configured key opens it. */
export type ListedCell = { name: string; number: number; state: string; url: string | null; listenUrl: string | null }

/** Lists the cells of a deployment, home first. */
export const listCells = async (home: Pick<OpenServices, 'config' | 'pool' | 'secrets'>): Promise<ListedCell[]> => [
  { ...HOME, state: 'open', url: home.config.DATABASE_URL, listenUrl: home.config.DATABASE_LISTEN_URL },
  ...(await listDirectory(home.pool, home)).map(cell => ({ ...cell, listenUrl: cell.url })),
]

/**
 * Lists the cells of a deployment, or the cell of a name.
 * @throws CommandError if no cell has the name
 */
export async function listChosenCells(home: OpenServices, name: string | undefined): Promise<ListedCell[]> {
  const cells = (await listCells(home)).filter(cell => name === undefined || cell.name === name)
  return cells.length > 0 ? cells : raiseUnknownCell(name)
}

/** Runs work on the database of a cell. */
export async function withCellPool<T>(url: string, work: (pool: Pool) => Promise<T>): Promise<T> {
  const pool = await openPool({ databaseUrl: url, connections: 1, applicationName: 'muster cells' })
  try {
    return await work(pool)
  } finally {
    await pool.end()
  }
}

/** Checks the database of a cell. */
export async function checkCell(config: Config, { name, number, state, url, listenUrl }: ListedCell): Promise<Check[]> {
  if (url === null || listenUrl === null)
    return [{ name: 'url', status: 'fail', detail: NO_KEY, fix: 'Add the key to SECRETS_ENCRYPTION_KEY_PREVIOUS.' }]
  const address = addressOf(url)
  try {
    return await withCellPool(url, async pool => {
      const checks = await checkServer(pool, address)
      checks.push(await checkConnections({ DATABASE_URL: url, DATABASE_LISTEN_URL: listenUrl }))
      const migrations = await checkMigrations(pool)
      checks.push(migrations)
      if (migrations.status !== 'fail') {
        checks.push(...(await checkMonths(pool)), ...(await checkKeys(config, pool)))
        checks.push(...(await checkQueues(listenUrl, pool, commandLog(process.env), name)))
        checks.push(await checkAddresses(config, pool), await checkBrowserKeys(pool))
        if (number !== HOME.number && state !== 'down' && state !== 'moving')
          checks.push(await checkCopies(config, { name, number, url }))
      }
      if (state === 'moving')
        checks.push({
          name: 'state',
          status: 'warn',
          detail: `${name} takes no requests while it is moved`,
          fix: 'If its command was interrupted, repeat muster cells move, or pass --cancel to it.',
        })
      if (state === 'down')
        checks.push({
          name: 'state',
          status: 'warn',
          detail: `${name} is not complete, or was removed`,
          fix: 'Repeat muster cells add.',
        })
      return checks
    })
  } catch (error) {
    const status = state === 'down' ? 'warn' : 'fail'
    return [{ name: 'database', status, detail: `${address} does not answer: ${describeError(error)}` }]
  }
}

/** Checks that users and policies are copied to a cell. */
async function checkCopies(config: Config, cell: Parameters<typeof copiesState>[1]): Promise<Check> {
  const { by, lag_bytes, differing, problems } = await copiesState({ config }, cell)
  if (problems.length === 0)
    return {
      name: 'copies',
      status: 'ok',
      detail: lag_bytes === null ? `by ${by}` : `by ${by}, ${lag_bytes} bytes late`,
    }
  const status = by === null || differing.length > 0 ? 'fail' : 'warn'
  return { name: 'copies', status, detail: problems.join('; ') }
}

const SEVERITY = ['ok', 'warn', 'fail'] as const

/** Checks the cells besides home, a line for each. */
export async function checkCells(config: Config, pool: Pool): Promise<Check[]> {
  const [, ...cells] = await listCells({ config, pool, secrets: secretBoxOf(config) })
  const checks = await Promise.all(cells.map(cell => checkCell(config, cell).then(found => summaryOf(cell, found))))
  if (cells.length > 0 && !config.CELLS)
    checks.push({
      name: 'cells',
      status: 'warn',
      detail: `CELLS is not set: projects of ${cells.map(({ name }) => name).join(', ')} are not served`,
      fix: 'Set CELLS=true in all processes.',
    })
  return checks
}

function summaryOf({ name, url }: ListedCell, checks: readonly Check[]): Check {
  const status = SEVERITY[Math.max(...checks.map(check => SEVERITY.indexOf(check.status)))]
  const found = checks.filter(check => check.status !== 'ok')
  return {
    name: `cell ${name}`,
    status,
    detail: found.length === 0 ? addressOf(url as string) : found.map(({ detail }) => detail).join('; '),
    fix: found.find(({ fix }) => fix)?.fix,
  }
}
