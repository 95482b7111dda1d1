import { sql } from '#core/db/sql.ts'

/** Expression for whether a message `m` is an answer that the vendor refused: its history is empty. */
export const isRefusedMessage = sql.fragment`coalesce(m.history = '[]', false)`

/**
 * Expression for whether a message `m` is an answer that the vendor refused, or of the user and answered by it: the vendor
 * refuses every request with it. `withoutRefused` of prompts has the same rule without a lookup per message, except that it
 * keeps the newest messages of the user. By conversation_messages_position.
 */
export const isInRefusedExchange = sql.fragment`(not m.note and coalesce((
  select n.history = '[]' from conversation_messages n
  where n.conversation_id = m.conversation_id and n.position >= m.position and n.role = 'assistant'
  order by n.position limit 1), false))`
