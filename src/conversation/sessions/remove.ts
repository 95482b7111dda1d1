import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { clearMailbox } from '../turns/mailbox.ts'
import { removeRow } from './kind.ts'
import { failureOf, lockSession } from './state.ts'

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
