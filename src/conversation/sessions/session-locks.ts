import { AppError, type ErrorCode, type RecordedFailure, raise } from '#core/base/errors.ts'
import { rowFromJson } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ConversationRow } from '../dialog/messages/model.ts'
import type { MessagePlace } from '../dialog/messages/store.ts'
import type { SessionRow } from './model.ts'
import { lockWithPlace } from './store.ts'

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

/** Locks a session with its conversation, whose ID is fixed, and reads both with the place of a new message. */
export async function lockSessionAndConversation(
  tx: Tx,
  { id, conversation_id }: Pick<SessionRow, 'id' | 'conversation_id'>,
): Promise<{ session: SessionRow; conversation: ConversationRow; place: MessagePlace }> {
  const found = await lockWithPlace(tx, { id, conversation_id })
  if (!found) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  const { conversation, next_position, now, ...session } = found
  return { session, conversation: rowFromJson(conversation) as ConversationRow, place: { next_position, now } }
}

/** @throws SESSION_CLOSED, SESSION_EXPIRED */
export function requireOpen(session: Pick<SessionRow, 'id' | 'status'>): void {
  if (session.status === 'closed') raise('SESSION_CLOSED', { meta: { session_id: session.id } })
  if (session.status === 'expired') raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
}
