import { raise } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { findPauseState, lockPauseState } from './store.ts'

/**
 * Checks that work may start in a project: call it in the transaction that inserts the work. Holds the project row FOR
 * SHARE until the transaction ends, so that no start commits after a pause answered.
 * Raises PROJECT_PAUSED with `meta { project_id, pause_reason }`, RESOURCE_NOT_FOUND when the project is gone.
 */
export const lockRunnable = async (tx: Tx, projectId: string): Promise<void> =>
  refusePaused(projectId, await lockPauseState(tx, projectId))

/** The same for work that is done at once and has no row: what a pause that comes now does not stop. */
export const requireRunnable = async (db: Queryable, projectId: string): Promise<void> =>
  refusePaused(projectId, await findPauseState(db, projectId))

type PauseState = { paused_at: string | null; pause_reason: string | null }

function refusePaused(project_id: string, state: PauseState | null): void {
  const { paused_at, pause_reason } = state ?? raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
  if (paused_at !== null) raise('PROJECT_PAUSED', { meta: { project_id, pause_reason } })
}
