import { raise } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { findPauseState, lockPauseState, type PauseState } from './store.ts'

/** How long work of a paused project is left alone, unless the pause ends: that takes it up. */
export const PAUSE_HOLD_MS = 15 * 60_000

/** What modules do in the transaction in which the pause of a project begins. */
export const pauseHooks = extensionPoint<(tx: Tx, projectId: string) => Promise<void>>('beginnings of pauses')

/** What modules do in the transaction in which a caller ends the pause of a project. */
export const resumeHooks =
  extensionPoint<(tx: Tx, projectId: string, by: PrincipalRecord) => Promise<void>>('ends of pauses')

/**
 * Checks that work may start in a project: call it in the transaction that inserts the work. Holds the project row FOR
 * SHARE until the transaction ends, so that no start commits after a pause answered.
 * Raises PROJECT_PAUSED with `meta { project_id, pause_reason }`, RESOURCE_NOT_FOUND when the project is gone.
 */
export const lockUnpaused = async (tx: Tx, projectId: string): Promise<void> => {
  requireNotPaused(projectId, await lockPauseState(tx, projectId))
}

/** The same for work that is done at once and has no row: what a pause that comes now does not stop. Returns what it read. */
export const requireUnpaused = async (db: Queryable, projectId: string): Promise<PauseState> =>
  requireNotPaused(projectId, await findPauseState(db, projectId))

/** The same for who has read it with something else. */
export function requireNotPaused(project_id: string, found: PauseState | null): PauseState {
  const state = found ?? raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
  const { paused_at, pause_reason } = state
  return paused_at === null ? state : raise('PROJECT_PAUSED', { meta: { project_id, pause_reason } })
}
