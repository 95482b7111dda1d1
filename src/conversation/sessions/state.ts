import { AppError, type ErrorCode, type RecordedFailure, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { type ConversationRow, lockConversation } from '../conversations/store.ts'
import type { SessionRow } from './model.ts'
import { findSession } from './store.ts'

/** What the turns end with that a session takes down with it. */
export const failureOf = (code: ErrorCode, message?: string, meta?: Record<string, unknown>): RecordedFailure =>
  new AppError(code, { message, meta }).recorded()

/** The end of a turn that another took the place of; the text it had is kept. */
export const INTERRUPTED: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'interrupted',
  meta: { reason: 'interrupted' },
}
/** The same, leaving no message. */
export const ROLLED_BACK: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'rolled back',
  meta: { reason: 'rolled_back' },
}

/** The session under its lock. Raises RESOURCE_NOT_FOUND when it is gone. */
export async function lockSession(tx: Tx, id: string): Promise<SessionRow> {
  const session = await findSession(tx, id, true)
  return session ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** The same with the conversation, in one statement less: a session keeps its conversation. */
export async function lockBoth(
  tx: Tx,
  { id, conversation_id }: Pick<SessionRow, 'id' | 'conversation_id'>,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  const conversation = await lockConversation(tx, conversation_id)
  const session = conversation && (await findSession(tx, id))
  if (!session) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  return { session, conversation }
}

/** Refuses messages and turns of a session that is not open: SESSION_CLOSED, SESSION_EXPIRED. */
export function requireOpen(session: Pick<SessionRow, 'id' | 'status'>): void {
  if (session.status === 'closed') raise('SESSION_CLOSED', { meta: { session_id: session.id } })
  if (session.status === 'expired') raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
}
