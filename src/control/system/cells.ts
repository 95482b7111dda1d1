import { cellUnavailable, HOME } from '#core/services/cell.ts'
import { listDirectory } from '#core/services/cell-directory.ts'
import { describeCells } from '#core/services/cell-facts.ts'
import type { SystemCell } from './model.ts'
import { recentRead } from './recent-read.ts'

/** Lists the cells with their size and copies, home first; only home in a deployment without cells. */
export const systemCells = recentRead(async (services): Promise<SystemCell[]> => {
  const { cells } = services
  const home = cells?.home ?? services
  const others = cells ? await listDirectory(home.pool, home) : []
  const described = await describeCells(home, others, async ({ name, number }, read) => {
    const served = number === HOME.number ? home : cells?.named(name)?.services
    if (!served) throw cellUnavailable({ name })
    return read(served.pool)
  })
  return described.map(({ failure, ...facts }) => ({ ...facts, reachable: failure === null }))
})
