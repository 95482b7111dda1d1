import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { lockConversation, removeConversation } from '../conversations/store.ts'
import { clearMailbox } from '../turns/mailbox.ts'
import { presentSession, type SessionRow } from './model.ts'
import { failureOf, lockSession } from './state.ts'

/** Removes a session whose lock the caller holds and whose mailbox is empty, with its conversation. */
export async function removeRow(tx: Tx, session: SessionRow): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  // The session's row goes with the conversation's.
  if (conversation) await removeConversation(tx, conversation)
  tx.emit('sessions.deleted', session.project_id, presentSession(session))
}

/**
 * Deletes a session with its conversation, messages and turns (conversation, 10.3.9): what waits or runs ends with
 * RESOURCE_NOT_FOUND. Its end user, generations, traces and forks stay. Raises RESOURCE_NOT_FOUND when it is gone.
 */
export async function removeSession(tx: Tx, services: Services, id: string): Promise<void> {
  const session = await lockSession(tx, id)
  const failure = failureOf('RESOURCE_NOT_FOUND', undefined, { id })
  await clearMailbox(tx, services, { id: session.conversation_id }, failure)
  await removeRow(tx, session)
}
