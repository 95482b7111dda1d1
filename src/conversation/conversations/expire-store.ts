import { z } from 'zod'
import { isTurnHeld } from '../../control/retention/erasure.ts'
import type { ExpiringProject } from '../../control/retention/expire.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type ConversationRow, conversationKind } from './model.ts'

const ExpiredConversation = z.object({ id: z.string(), created_at: z.string(), message_count: z.int() })
export type ExpiredConversation = z.output<typeof ExpiredConversation>
const expired = sql.type(ExpiredConversation)

/**
 * Whether a conversation `t` is past a time, and nothing in it runs or is waited for. By conversation_turns_open and
 * generations_conversation.
 */
const isIdle = (cutoff: string): Fragment => sql.fragment`
  t.updated_at < ${cutoff}::timestamptz
  and not exists (
    select from conversation_turns w where w.conversation_id = t.id and w.state in ('queued', 'running'))
  and not exists (
    select from generations g where g.conversation_id = t.id
      and (g.completed_at is null or ${isTurnHeld(sql.fragment`${cutoff}::timestamptz`)}))`

/** The next conversations of a project that can be deleted, oldest first. By conversations_project. */
export const deletableConversations = (
  db: Queryable,
  { id, cutoff }: ExpiringProject,
  after: ExpiredConversation | null,
  limit: number,
): Promise<readonly ExpiredConversation[]> =>
  db.any(expired`
    select t.id, t.created_at, t.message_count from conversations t
    where t.project_id = ${id} and t.created_at < ${cutoff}::timestamptz
      ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
      and ${isIdle(cutoff)}
    order by t.created_at, t.id limit ${limit}`)

/** Locks those of some conversations that can still be deleted; what others hold is left to the next sweep. */
export async function lockExpiredConversations(
  tx: Queryable,
  { cutoff }: ExpiringProject,
  ids: readonly string[],
): Promise<readonly ConversationRow[]> {
  const some = sql.array([...ids], 'text')
  await tx.query(voidStatement`
    select from conversations where id = any(${some}) order by id for update skip locked`)
  // In a statement behind the locks: a turn that came meanwhile is seen.
  return tx.any(conversationKind.sql`
    select ${conversationKind.columns} from conversations t
    where t.id = any(${some}) and ${isIdle(cutoff)} order by t.id for update skip locked`)
}
