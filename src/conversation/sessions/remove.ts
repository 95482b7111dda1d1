import type { Services } from '../../core/operation.ts'
import type { Tx } from '../../core/write.ts'
import { lockConversation, removeConversation } from '../conversations/store.ts'
import { clearMailbox } from '../turns/mailbox.ts'
import { presentSession } from './model.ts'
import { failureOf, lockSession } from './state.ts'

/**
 * Deletes a session with its conversation, messages and turns (conversation, 10.3.9): what waits or runs ends with
 * RESOURCE_NOT_FOUND. Its end user, generations, traces and forks stay. Raises RESOURCE_NOT_FOUND when it is gone.
 */
export async function removeSession(tx: Tx, services: Services, id: string): Promise<void> {
  const session = await lockSession(tx, id)
  const conversation = await lockConversation(tx, session.conversation_id)
  if (!conversation) throw new Error(`session ${id} without conversation`)
  await clearMailbox(tx, services, conversation, failureOf('RESOURCE_NOT_FOUND', undefined, { id }))
  // The session's row goes with the conversation's.
  await removeConversation(tx, conversation)
  tx.emit('sessions.deleted', session.project_id, presentSession(session))
}
