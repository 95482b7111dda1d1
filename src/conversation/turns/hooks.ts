import type { RecordedFailure } from '../../core/api/errors.ts'
import type { KindRow } from '../../core/api/kind.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import type { Fragment, Queryable } from '../../core/db/sql.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { SessionKnowledge } from '../../execution/agents/knowledge.ts'
import type { MessageRow } from '../conversations/model.ts'

/** What the mailbox needs to know of the session whose conversation it is. */
export type SessionFacts = {
  id: string
  project_id: string
  agent_id: string
  /** The end user. */
  actor_id: string | null
  /** The status in force, expiry included. */
  status: 'open' | 'closed' | 'expired'
  /** The stored keys and those that only the platform may say; keys of a request are laid over them. */
  tool_context: ToolContext | null
  /** What its turns know beside what their agent does. */
  knowledge_config: SessionKnowledge | null
  /** The session as its kind finds it, for permission checks and events. */
  row: KindRow
}

export type SettledTurn = {
  generation_id: string
  trace_id: string
  status: 'completed' | 'failed' | 'requires_action'
  error: RecordedFailure | null
  /** Of a paused turn whose content is kept. */
  required_action?: Record<string, unknown> | null
  agent_id: string
  /** What the model had said when the turn was ended; null when nothing or when it completed. */
  partial: string | null
  /** Where a reply of the turn goes. */
  reply_position: number | undefined
  /** What `json` gave while the turn ran; null when nobody asked. */
  session: object | null
}

/**
 * What sessions add to the turns of their conversations. Sessions build on conversations, so they contribute it. All run
 * under the conversation's row lock, save `load` outside of a transaction and `started`, which follows a claim.
 */
export type SessionHooks = {
  /** The session of a conversation `c` as jsonb, for a statement that reads something else. */
  json: Fragment
  load: (db: Queryable, sessionId: string) => Promise<SessionFacts | null>
  started: (outgoing: Outbox, session: SessionFacts, turn: { generation_id: string; trace_id: string }) => void
  settled: (tx: Tx, sessionId: string, turn: SettledTurn) => Promise<void>
  /** A message was added by the routes of conversations. */
  stored: (tx: Tx, sessionId: string, message: MessageRow) => Promise<void>
  /** Removes the session's row with its event; its conversation is removed by the caller. */
  remove: (tx: Tx, sessionId: string) => Promise<void>
}

export const sessionHooks = extensionPoint<SessionHooks>('sessions of conversations')
