import { z } from 'zod'
import { type Counts, isTurnHeld } from '#control/retention/erasure.ts'
import {
  auditExpiry,
  type ExpiringProject,
  expirePages,
  retentionSweep,
  sweepProjects,
} from '#control/retention/expire.ts'
import { requireNoLegalHold } from '#control/retention/legal-hold.ts'
import { emitSessionDeleted } from '#conversation/sessions/kind.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ConversationRow, conversationKind } from './model.ts'
import { removeConversation } from './store.ts'

/** Deletes conversations after the retention of their project (`conversation_retention_days`). */

export const EXPIRE_CONVERSATIONS = 'conversations:ExpireConversations'

/** Conversations of one page. */
const PAGE = 100
/** Messages of one transaction, by which a page is split; a conversation is never split. */
const MESSAGES_PER_TRANSACTION = 5000

export const { handler: expiryHandler, schedule: expirySchedule } = retentionSweep(
  'conversation.expiry',
  (services, stopping) =>
    sweepProjects(services, stopping, {
      setting: 'conversation_retention_days',
      done: 'expired conversations deleted',
      sweep: project => expireProject(services, project, stopping),
      expired: project => sql.fragment`select from conversations t where ${isExpired(project)}`,
    }),
)

const expireProject = (services: Services, project: ExpiringProject, stopping: AbortSignal) =>
  expirePages<ExpiredConversation>(
    services,
    stopping,
    {
      size: PAGE,
      find: after => listExpiredConversations(services.pool, project, after, PAGE),
      sizeOf: ({ message_count }) => message_count,
      most: MESSAGES_PER_TRANSACTION,
      fault: 'conversations_expired',
    },
    (tx, ids) => deleteExpired(tx, services, project, ids),
  )

/** Deletes conversations like their delete operation, with their sessions. */
async function deleteExpired(
  tx: Tx,
  services: Services,
  project: ExpiringProject,
  ids: readonly string[],
): Promise<Counts> {
  await requireNoLegalHold(tx, project.id)
  const conversations = await lockExpiredConversations(tx, project, ids)
  for (const conversation of conversations) {
    if (conversation.session_id !== null) await emitSessionDeleted(tx, conversation.session_id)
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

const ExpiredConversation = z.object({ id: z.string(), created_at: z.string(), message_count: z.int() })
export type ExpiredConversation = z.output<typeof ExpiredConversation>
const expiredRow = sql.type(ExpiredConversation)

/**
 * Condition that a conversation `t` has no activity since `cutoff`, no open turns, and no turns retained by other
 * records. By conversation_turns_open and generations_conversation.
 */
const isIdle = (cutoff: string): Fragment => sql.fragment`
  t.updated_at < ${cutoff}::timestamptz
  and not exists (
    select from conversation_turns w where w.conversation_id = t.id and w.state in ('queued', 'running'))
  and not exists (
    select from generations g where g.conversation_id = t.id
      and (g.completed_at is null or ${isTurnHeld(sql.fragment`${cutoff}::timestamptz`)}))`

/** Condition of the conversations `t` of a project that can be deleted. By conversations_project. */
const isExpired = ({ id, cutoff }: ExpiringProject): Fragment => sql.fragment`
  t.project_id = ${id} and t.created_at < ${cutoff}::timestamptz and ${isIdle(cutoff)}`

/** Returns the next conversations of a project that can be deleted, oldest first. */
const listExpiredConversations = (
  db: Queryable,
  project: ExpiringProject,
  after: ExpiredConversation | null,
  limit: number,
): Promise<readonly ExpiredConversation[]> =>
  db.any(expiredRow`
    select t.id, t.created_at, t.message_count from conversations t
    where ${isExpired(project)}
      ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by t.created_at, t.id limit ${limit}`)

/** Locks the conversations that can still be deleted; locked ones are left to the next sweep. */
async function lockExpiredConversations(
  tx: Queryable,
  { cutoff }: ExpiringProject,
  ids: readonly string[],
): Promise<readonly ConversationRow[]> {
  const some = sql.array([...ids], 'text')
  await tx.query(voidStatement`
    select from conversations where id = any(${some}) order by id for update skip locked`)
  // A separate statement after the locks, so that turns enqueued meanwhile are visible.
  return tx.any(conversationKind.sql`
    select ${conversationKind.columns} from conversations t
    where t.id = any(${some}) and ${isIdle(cutoff)} order by t.id for update skip locked`)
}
