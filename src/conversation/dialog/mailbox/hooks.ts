import type { KindRow } from '#core/api/kind.ts'
import type { ToolContext } from '#core/api/tool-context.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Fragment, Queryable } from '#core/db/sql.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { SessionKnowledge } from '#execution/agents/knowledge.ts'
import type { MessageRow } from '../messages/model.ts'

/** The session of a conversation, as its mailbox requires it. */
export type SessionFacts = {
  id: string
  project_id: string
  agent_id: string
  /** The end user. */
  actor_id: string | null
  /** The effective status, expiry included. */
  status: 'open' | 'closed' | 'expired'
  /** Who answers. */
  control: 'agent' | 'operator'
  /** User who took over. */
  assigned_to: string | null
  /** The stored keys and the keys set by the platform; keys of a request are merged over the stored ones. */
  tool_context: ToolContext | null
  /** Additional knowledge of its turns. */
  knowledge_config: SessionKnowledge | null
  /** State that the agent may share with its client. */
  state: unknown
  /** The session's row, for permission checks and events. */
  row: KindRow
}

export type SettledTurn = {
  generation_id: string
  trace_id: string
  status: 'completed' | 'failed' | 'requires_action'
  error: RecordedFailure | null
  /** Of a paused turn with stored content. */
  required_action?: Record<string, unknown> | null
  agent_id: string
  agent_version?: number | null
  /** Whether the agent names its sessions. */
  names_session?: boolean
  /** Text streamed when the turn was ended; null if none or if it completed. */
  partial: string | null
  /** Position of the reply. */
  reply_position: number | undefined
  /** The row from `json`, read while the turn ran; null if it was not read. */
  session: object | null
}

/**
 * Extensions of a conversation's turns by its session, contributed because sessions depend on conversations. All run
 * under the conversation's row lock, except `load` outside of a transaction and `started`, which is part of a claim.
 */
export type SessionHooks = {
  /** The session of a conversation `c` as jsonb, for statements that read it with other rows. */
  json: Fragment
  load: (db: Queryable, sessionId: string) => Promise<SessionFacts | null>
  started: (outbox: Outbox, session: SessionFacts, turn: { generation_id: string; trace_id: string }) => void
  settled: (tx: Tx, sessionId: string, turn: SettledTurn) => Promise<void>
  /** Called after a message was added by the conversation routes. */
  stored: (tx: Tx, sessionId: string, message: MessageRow) => Promise<void>
  /** Changes the state of a session, and returns the new one. Requires lockConversation. */
  changeState: (tx: Tx, sessionId: string, change: (state: unknown) => unknown) => Promise<unknown>
  /** Emits the session's deletion; its row is deleted with the conversation. */
  remove: (tx: Tx, sessionId: string) => Promise<void>
}

export const sessionHooks = extensionPoint<SessionHooks>('sessions of conversations')
