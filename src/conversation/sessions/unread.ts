import { sql } from '#core/db/sql.ts'

/** Most unread messages that are counted. */
const MAX_UNREAD = 100

/**
 * Expression for the number of messages of the agent and of operators in a session `t` that the end user has not seen,
 * without imported ones. By conversation_messages_position.
 */
export const unreadCount = sql.fragment`(select count(*) from (
  select from conversation_messages u where u.conversation_id = t.conversation_id and u.role = 'assistant'
    and u.origin is distinct from 'system' and u.position > coalesce(t.read_position, -1) limit ${MAX_UNREAD}) u)`
