import type { Services } from '#core/base/services.ts'
import { idStatement } from '#core/db/sql.ts'
import { requireCell } from '#core/services/cell.ts'
import { isolateFailures } from '#core/work/sweeps.ts'
import { deleteGrantsOfProject, isStillIn, listAbsentProjects } from '../grants/store.ts'
import { principalsChanged } from '../principals/principals.ts'

/**
 * Deletes the grants of deleted projects of other cells that were not deleted with the project; returns their number. Grants are
 * at home, and a project is deleted in the transaction of its cell. Cells that do not answer are left to the next sweep.
 */
export async function sweepGrantsOfCells(services: Services): Promise<number> {
  const { cell, cells, pool } = services
  if (!cells || cell?.number !== 0) return 0
  let deleted = 0
  for (const { id, cell } of await listAbsentProjects(pool))
    await isolateFailures(services, { project_id: id }, async () => {
      const moved = cell === null ? undefined : cells.named(cell)
      const { pool } = moved ? requireCell(moved) : cells.ofProject(id)
      if (await pool.exists(idStatement`select id from projects where id = ${id}`)) return
      deleted += await services.write(async tx => {
        if (!(await isStillIn(tx, { id, cell }))) return 0
        principalsChanged(tx, `project:${id}`)
        return deleteGrantsOfProject(tx, id)
      })
    })
  return deleted
}
