import { HOME } from '#core/services/cell.ts'
import { CellRefusal, NO_KEY } from '#core/services/cell-directory.ts'
import { type CellProject, listCellProjects } from '#core/services/cell-facts.ts'
import { Cells } from '#core/services/cells.ts'
import { type MovedProject, moveProject } from '#core/services/move-project.ts'
import { onDirectory } from './cells.ts'
import { listChosenCells, withCellPool } from './doctor-cells.ts'
import { CommandError, describeError, print, printJson, printProgress, table } from './output.ts'

type Options = { data: string; json?: boolean }

type Listed = CellProject & { cell: string }

/**
 * `muster cells projects`: the projects of all cells, or of one. Cells that do not answer are reported, with exit code 1.
 * @throws CommandError if no cell has the name
 */
export const projectsCommand = (name: string | undefined, { data, json }: Options): Promise<void> =>
  onDirectory(data, async home => {
    const cells = await listChosenCells(home, name)
    const projects: Listed[] = []
    const missing: { name: string; error: string }[] = []
    for (const { name: cell, url } of cells)
      try {
        if (url === null) throw new Error(NO_KEY)
        projects.push(...(await withCellPool(url, listCellProjects)).map(project => ({ cell, ...project })))
      } catch (error) {
        missing.push({ name: cell, error: describeError(error) })
        process.exitCode = 1
      }
    if (json) return printJson({ projects, missing_cells: missing })
    for (const cell of missing) printProgress(`cell ${cell.name} does not answer: ${cell.error}`)
    const rows = projects.map(({ cell, id, name, rows, bytes }) => [cell, id, rows, sizeOf(bytes), name])
    print(table(['cell', 'project', 'counted rows', 'stored bytes', 'name'], rows, 'no projects'))
  })

const sizeOf = (bytes: number | null): string => (bytes === null ? '-' : `${(bytes / 1024 ** 2).toFixed(1)} MiB`)

function reportOf({ project_id, from, to, rows, cancelled }: MovedProject): string {
  if (cancelled) return `the move of project ${project_id} to ${from} is cancelled; it is in ${to}, where it was`
  // An interrupted command has inserted the rows.
  return rows === null ? `project ${project_id} is in ${to}` : `project ${project_id} is in ${to}, with ${rows} rows`
}

/**
 * `muster cells projects move`: can be repeated after a failure.
 * @throws CommandError if the project cannot be moved
 */
export const moveCommand = (id: string, { data, json, to }: Options & { to: string }): Promise<void> =>
  onDirectory(data, async home => {
    const cells = new Cells(home, { role: 'cli' })
    try {
      await cells.start()
      const moved = await moveProject(cells, id, to, printProgress).catch(error => {
        if (error instanceof CellRefusal) throw error
        throw new CommandError(`project ${id} is not moved: ${describeError(error)}`, 'Repeat the command.')
      })
      if (json) return printJson(moved)
      print(reportOf(moved))
    } finally {
      await cells.close()
    }
    if (!home.config.CELLS && to !== HOME.name)
      printProgress('Set CELLS=true in all processes, which then serve the project.')
  })
