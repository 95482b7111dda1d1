import { AppError, type ErrorCode, type RecordedFailure, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { ConversationRow } from '../conversations/model.ts'
import { lockConversation } from '../conversations/store.ts'
import { findSession } from './kind.ts'
import type { SessionRow } from './model.ts'

/** What the turns end with that a session takes down with it. */
export const sessionFailure = (code: ErrorCode, message?: string, meta?: Record<string, unknown>): RecordedFailure =>
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

/** A session with its conversation under their lock, in one statement less than one after the other: a session keeps its conversation. */
export async function lockSessionAndConversation(
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
