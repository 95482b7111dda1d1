import { extensionPoint } from '#core/base/declarations.ts'
import { raise } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { findPauseState, lockPauseState, type PauseState } from './store.ts'

/** Hooks that run in the transaction that pauses a project. */
export const pauseHooks = extensionPoint<(tx: Tx, projectId: string) => Promise<void>>({
  name: 'project pause hooks',
  folder: 'identity/projects',
  description: 'Runs in the transaction that pauses a project',
})

/** Hooks that run in the transaction that resumes a project. */
export const resumeHooks = extensionPoint<(tx: Tx, projectId: string, by: PrincipalRecord) => Promise<void>>({
  name: 'project resume hooks',
  folder: 'identity/projects',
  description: 'Runs in the transaction that resumes a project, and wakes the work that waited',
})

/**
 * Requires that work may start in a project; called in the transaction that inserts the work. Locks the project row FOR
 * SHARE until the transaction ends, so that no start commits after a pause has returned.
 * @throws PROJECT_PAUSED with `meta { project_id, pause_reason }`, RESOURCE_NOT_FOUND for a deleted project
 */
export const lockUnpaused = async (tx: Tx, projectId: string): Promise<void> => {
  requireNotPaused(projectId, await lockPauseState(tx, projectId))
}

/**
 * Requires that a project is not paused, for work that runs immediately and has no row: a later pause does not stop it.
 * Returns the state.
 */
export const requireUnpaused = async (db: Queryable, projectId: string): Promise<PauseState> =>
  requireNotPaused(projectId, await findPauseState(db, projectId))

/** Requires that a pause state, already loaded, is not paused. */
export function requireNotPaused(project_id: string, found: PauseState | null): PauseState {
  const state = found ?? raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
  const { paused_at, pause_reason } = state
  return paused_at === null ? state : raise('PROJECT_PAUSED', { meta: { project_id, pause_reason } })
}
