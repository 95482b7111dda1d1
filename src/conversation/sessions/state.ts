import { isDeepStrictEqual } from 'node:util'
import { parse } from '#core/api/validate.ts'
import type { Tx } from '#core/writes/writer.ts'
import { findSession, sessionKind } from './kind.ts'
import { type SessionRow, SessionState } from './model.ts'
import { updateSession } from './store.ts'

/**
 * Replaces the state of a session, if it differs. Requires the conversation's lock.
 * @throws VALIDATION_FAILED for a state above the limit
 */
export async function setSessionState(tx: Tx, session: SessionRow, state: unknown): Promise<SessionRow> {
  if (isDeepStrictEqual(state, session.state)) return session
  const changed = await updateSession(tx, session.id, { state: parse(SessionState, state) })
  tx.emit(sessionKind, 'updated', changed)
  return changed
}

/**
 * Changes the state of a session, and returns the new one; null if it was deleted. Requires the conversation's lock.
 * @throws VALIDATION_FAILED for a state above the limit
 */
export async function changeSessionState(
  tx: Tx,
  id: string,
  change: (state: unknown) => unknown,
): Promise<SessionRow['state'] | null> {
  const session = await findSession(tx, id)
  return session && (await setSessionState(tx, session, change(session.state))).state
}
