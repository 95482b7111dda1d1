import { AppError, type ErrorCode, type RecordedFailure, raise } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ConversationRow } from '../dialog/messages/model.ts'
import { lockConversation } from '../dialog/messages/store.ts'
import { findSession } from './kind.ts'
import type { SessionRow } from './model.ts'

/** Returns the failure of turns that end with their session. */
export const sessionFailure = (code: ErrorCode, message?: string, meta?: Record<string, unknown>): RecordedFailure =>
  new AppError(code, { message, meta }).recorded()

/** Failure of a turn that another one replaced; its partial text is stored. */
export const INTERRUPTED: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'interrupted',
  meta: { reason: 'interrupted' },
}
/** Failure of a turn that another one replaced; its partial text is discarded. */
export const ROLLED_BACK: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'rolled back',
  meta: { reason: 'rolled_back' },
}

/**
 * Locks a session with its conversation; one statement less than separately, because a session's conversation is fixed.
 */
export async function lockSessionAndConversation(
  tx: Tx,
  { id, conversation_id }: Pick<SessionRow, 'id' | 'conversation_id'>,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  const conversation = await lockConversation(tx, conversation_id)
  const session = conversation && (await findSession(tx, id))
  if (!session) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  return { session, conversation }
}

/** @throws SESSION_CLOSED, SESSION_EXPIRED */
export function requireOpen(session: Pick<SessionRow, 'id' | 'status'>): void {
  if (session.status === 'closed') raise('SESSION_CLOSED', { meta: { session_id: session.id } })
  if (session.status === 'expired') raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
}
