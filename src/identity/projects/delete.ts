import { lockRowsOfProject, rowsOfProject } from '#core/api/dependents.ts'
import { srn } from '#core/api/kind.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { countsText, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { withStatementLimit } from '#core/db/pg-client.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import { inCellOf } from '#core/services/cell.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { deleteGrantsOfProject } from '../grants/store.ts'
import { principalsChanged } from '../principals/principals.ts'
import { type ProjectRow, projectKind } from './model.ts'
import { pauseHooks } from './pause.ts'
import { liftStatementTimeout, listDueDeletes, lockAgainstInserts, scheduleDeleteDate } from './store.ts'

const DAY_MS = 86_400_000

/**
 * Hooks that delete data of a project outside of its rows, such as stored bytes; called before the rows are deleted.
 */
export const projectDeleteHooks = extensionPoint<(tx: Tx, projectId: string) => Promise<void>>({
  name: 'project delete hooks',
  folder: 'identity/projects',
  description: 'Deletes what a project has outside of its rows, such as stored bytes, before the rows are deleted',
})

/**
 * Deletes a project. Without `force` only if it has no counted resources; with `force`, foreign keys cascade to
 * everything in it.
 * @throws RESOURCE_NOT_FOUND, PROJECT_HAS_DEPENDENTS with `meta { counts, sample_ids, forcible: true }`
 */
export function deleteProject(services: Services, tx: Tx, id: string, force: boolean): Promise<void> {
  const { home } = services
  if (home) tx.afterCommit(() => void withoutTenant(() => deleteGrantsAtHome(home, id)))
  if (!force) return deleteRows(tx, id, false)
  return withStatementLimit(Number.POSITIVE_INFINITY, async () => {
    await liftStatementTimeout(tx)
    await lockRowsOfProject(tx, id)
    await deleteRows(tx, id, true)
  })
}

/** Deletes the OAuth grants of a deleted project of another cell. What fails is left to the sweep of these grants. */
async function deleteGrantsAtHome(home: Services, id: string): Promise<void> {
  try {
    await inCellOf(home, () =>
      home.write(async tx => {
        if ((await deleteGrantsOfProject(tx, id)) > 0) principalsChanged(tx, `project:${id}`)
      }),
    )
  } catch (error) {
    home.log.warn({ err: error, project_id: id }, 'the OAuth grants of a deleted project remain until the next sweep')
  }
}

async function deleteRows(tx: Tx, id: string, force: boolean): Promise<void> {
  // Inserts lock this row FOR KEY SHARE through their foreign key: from now on they wait, and then fail.
  if (!(await lockAgainstInserts(tx, id))) raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (!force) {
    const dependents = await rowsOfProject(tx, id)
    if (Object.keys(dependents.counts).length > 0)
      raise('PROJECT_HAS_DEPENDENTS', {
        message: `Project ${id} still has resources (${countsText(dependents.counts)})`,
        meta: { ...dependents, forcible: true },
      })
  }
  for (const clear of projectDeleteHooks.all()) await clear(tx, id)
  await projectKind.delete(tx, id)
  principalsChanged(tx, `project:${id}`)
}

/**
 * Schedules the forced deletion of a project in `days` days and pauses it; resuming it cancels the deletion. Emits
 * projects.paused if the project was not paused, else projects.updated.
 */
export async function scheduleDelete(tx: Tx, services: Services, id: string, days: number): Promise<ProjectRow> {
  const before = await projectKind.lock(tx, id)
  const at = new Date(services.clock.now().getTime() + days * DAY_MS)
  const row = await scheduleDeleteDate(tx, id, at, 'deletion scheduled')
  if (before.paused_at === null) for (const hook of pauseHooks.all()) await hook(tx, id)
  tx.emit(projectKind, before.paused_at === null ? 'paused' : 'updated', row)
  return row
}

/**
 * Deletes the projects with a due deferred deletion, in one transaction each, and writes an audit entry without
 * principal for each. A failure is logged and left to the next sweep, without affecting the other projects. Concurrent
 * sweeps are safe.
 * @returns the number of deleted projects
 */
export async function sweepDeferredDeletes(services: Services, stopping: AbortSignal): Promise<number> {
  const now = services.clock.now()
  let deleted = 0
  for (const id of await listDueDeletes(services.pool, now)) {
    if (stopping.aborted) break
    try {
      if (await deleteWhenDue(services, id, now)) deleted++
    } catch (error) {
      if (isTransient(error)) throw error
      services.log.error({ err: error, project_id: id }, 'deferred project deletion failed')
    }
  }
  return deleted
}

/** Deletes a project unless it was resumed or deleted in the meantime. Returns whether it was deleted. */
const deleteWhenDue = (services: Services, id: string, now: Date): Promise<boolean> =>
  services.write(async tx => {
    const row = await projectKind.find(tx, id, true)
    if (!row?.delete_at || new Date(row.delete_at) > now) return false
    await deleteProject(services, tx, id, true)
    tx.audit(
      newAuditEntry({
        project_id: null,
        action: 'projects:DeleteProject',
        resource_srn: srn(id, projectKind.name, id),
        resource_public_id: id,
        status: 204,
        detail: { deferred: true, delete_at: row.delete_at },
        created_at: now.toISOString(),
      }),
    )
    return true
  })
