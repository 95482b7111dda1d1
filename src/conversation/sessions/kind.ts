import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import type { Tx } from '../../core/db/write.ts'
import { lockConversation, removeConversation } from '../conversations/store.ts'
import { presentSession, type SessionRow } from './model.ts'
import { findSession, sessionColumns } from './store.ts'

export const sessionKind = kind({
  name: 'session',
  prefix: 'sess',
  table: 'sessions',
  tags: true,
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'follow' },
    { kind: 'actor', column: 'actor_id', on_delete: 'null' },
  ],
  row: z.custom<SessionRow>(),
  columns: sessionColumns,
  events: [
    'created',
    'updated',
    'deleted',
    'closed',
    'expired',
    'tags_updated',
    'generation_started',
    'generation_requires_action',
    'generation_completed',
    'generation_failed',
  ],
  eventAliases: {
    generation_started: ['sessions.generation.started'],
    generation_requires_action: ['sessions.generation.requires_action'],
    generation_completed: ['sessions.generation.completed'],
  },
  eventNotes: 'generation_* add generation_id, trace_id and, when they apply, required_action or error',
  find: findSession,
  present: presentSession,
  remove: removeRow,
})

/** Removes a session whose lock the caller holds and whose mailbox is empty, with its conversation. */
export async function removeRow(tx: Tx, session: SessionRow): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  // The session's row goes with the conversation's.
  if (conversation) await removeConversation(tx, conversation)
  tx.emit(sessionKind, 'deleted', session)
}
