import { raise } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { lockPauseState } from './store.ts'

/**
 * Checks that work may start in a project: call it in the transaction that inserts the work. Holds the project row FOR
 * SHARE until the transaction ends, so that no start commits after a pause answered.
 * Raises PROJECT_PAUSED with `meta { project_id, pause_reason }`, RESOURCE_NOT_FOUND when the project is gone.
 */
export const lockRunnable = (tx: Tx, projectId: string): Promise<void> => requireRunnable(tx, projectId)

/** The same for work that has no row of its own. */
export async function requireRunnable(tx: Queryable, projectId: string): Promise<void> {
  const state = await lockPauseState(tx, projectId)
  if (!state) return raise('RESOURCE_NOT_FOUND', { meta: { id: projectId } })
  if (state.paused_at !== null)
    raise('PROJECT_PAUSED', { meta: { project_id: projectId, pause_reason: state.pause_reason } })
}
