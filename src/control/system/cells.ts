import { settledWithin } from '#core/base/event-loop.ts'
import type { Services } from '#core/base/services.ts'
import { addressOf } from '#core/db/database-url.ts'
import { listDirectory } from '#core/services/cell-directory.ts'
import { readCellFacts } from '#core/services/cell-facts.ts'
import { CELL_WAIT_MS, HOME } from '#core/services/cells.ts'
import { copyLags } from '#core/services/copies.ts'
import type { SystemCell } from './model.ts'

/** Lists the cells with their size, home first; only home in a deployment without cells. */
export async function systemCells(services: Services): Promise<SystemCell[]> {
  const { cells } = services
  const home = cells?.home ?? services
  const [others, lags] = cells ? await Promise.all([listDirectory(home.pool, home), copyLags(home)]) : [[], null]
  const listed = [
    { ...HOME, state: 'open' as const, url: home.config.DATABASE_URL, created_at: null, updated_at: null },
    ...others,
  ]
  return Promise.all(
    listed.map(async ({ name, number, state, url, created_at, updated_at }) => {
      const pool = number === HOME.number ? home.pool : cells?.named(name)?.services?.pool
      const facts =
        pool &&
        (await settledWithin(
          CELL_WAIT_MS,
          readCellFacts(pool).catch(() => null),
        ))
      return {
        name,
        number,
        address: url && addressOf(url),
        state,
        reachable: Boolean(facts),
        projects: facts?.projects ?? null,
        bytes: facts?.bytes ?? null,
        release: facts?.release ?? null,
        lag_bytes: lags?.get(name) ?? null,
        added_at: created_at,
        changed_at: updated_at,
      }
    }),
  )
}
