import { type Counts, sumCounts } from '../../control/retention/erasure.ts'
import {
  auditExpiry,
  type ExpiringProject,
  inPages,
  retentionSweep,
  sweepProjects,
  togetherOrApart,
} from '../../control/retention/expire.ts'
import { requireNoLegalHold } from '../../control/retention/legal-hold.ts'
import type { Tx } from '../../core/db/writer.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { sessionHooks } from '../turns/hooks.ts'
import { deletableConversations, type ExpiredConversation, lockExpiredConversations } from './expire-store.ts'
import { removeConversation } from './store.ts'

/** The end of conversations by the retention of their project (`conversation_retention_days`). */

export const EXPIRE_CONVERSATIONS = 'conversations:ExpireConversations'

/** Conversations of a page. */
const PAGE = 100
/** Messages of a transaction, by which a page is divided; one conversation goes as a whole. */
const MESSAGES = 5000

export const { handler: expiryHandler, schedule: expirySchedule } = retentionSweep(
  'conversation.expiry',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      days: 'conversation_retention_days',
      done: 'conversations past their retention deleted',
      sweep: project => expireProject(services, project, stopping),
    }),
)

async function expireProject(services: Services, project: ExpiringProject, stopping: AbortSignal): Promise<Counts> {
  const { pool } = services
  let done: Counts = {}
  const find = (after: ExpiredConversation | null) => deletableConversations(pool, project, after, PAGE)
  await inPages(stopping, { size: PAGE, find }, async found => {
    for (const ids of parts(found)) {
      const counts = await togetherOrApart(services, ids, (tx, some) => expire(tx, services, project, some))
      done = sumCounts(done, ...counts)
      await injectFault(services, 'conversations_expired')
      if (stopping.aborted) return
    }
  })
  return done
}

/** Divides conversations by their messages. */
function parts(found: readonly ExpiredConversation[]): string[][] {
  const divided: string[][] = []
  let messages = Number.POSITIVE_INFINITY
  for (const { id, message_count } of found) {
    if (messages + message_count > MESSAGES) {
      divided.push([])
      messages = 0
    }
    messages += message_count
    divided[divided.length - 1].push(id)
  }
  return divided
}

/** Deletes conversations as their route does, with the sessions that they belong to. */
async function expire(tx: Tx, services: Services, project: ExpiringProject, ids: readonly string[]): Promise<Counts> {
  await requireNoLegalHold(tx, project.id)
  const conversations = await lockExpiredConversations(tx, project, ids)
  for (const conversation of conversations) {
    if (conversation.session_id !== null) await sessionHooks.only()?.remove(tx, conversation.session_id)
    await removeConversation(tx, conversation)
  }
  if (conversations.length === 0) return {}
  const counts = {
    conversations: conversations.length,
    sessions: conversations.filter(({ session_id }) => session_id !== null).length,
    messages: conversations.reduce((sum, { message_count }) => sum + message_count, 0),
  }
  auditExpiry(tx, services, project, EXPIRE_CONVERSATIONS, counts)
  return counts
}
