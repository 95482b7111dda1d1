import { HOME, inCellOf } from '#core/services/cell.ts'
import { type DirectoryCell, findCell, NO_KEY, unknownCellMessage } from '#core/services/cell-directory.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { withServices } from './environment.ts'
import { CommandError } from './output.ts'

/** @throws CommandError */
export const raiseUnknownCell = (name: string | undefined): never => {
  throw new CommandError(unknownCellMessage(name), 'Run muster cells list.')
}

/**
 * Runs work with open services of a cell besides home, whose new IDs have its number.
 * @throws CommandError if no key opens its URL
 */
export async function withCell<T>(
  home: OpenServices,
  { name, number, url }: Pick<DirectoryCell, 'name' | 'number' | 'url'>,
  work: (services: OpenServices) => Promise<T>,
): Promise<T> {
  if (url === null) throw new CommandError(NO_KEY)
  const services = await openServices(
    { ...home.config, DATABASE_URL: url, DATABASE_LISTEN_URL: url },
    { log: home.log, role: 'cli', of: { cell: { name, number }, home } },
  )
  try {
    return await inCellOf(services, () => work(services))
  } finally {
    await services.close()
  }
}

/**
 * Runs work with all modules loaded and the services of the cell of a name.
 * @throws CommandError if no cell has the name, or its cell is down or being moved
 */
export const withCellServices = <T>(
  { data, cell: name }: { data: string; cell: string },
  work: (services: OpenServices) => Promise<T>,
): Promise<T> =>
  withServices(data, async home => {
    if (name === HOME.name) return work(home)
    const cell = (await findCell(home.pool, home, name)) ?? raiseUnknownCell(name)
    if (cell.state === 'down' || cell.state === 'moving')
      throw new CommandError(`cell ${name} is ${cell.state}`, 'Run muster cells check.')
    return withCell(home, cell, work)
  })
