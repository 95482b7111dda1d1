import type { RecordedFailure } from '../../core/api/errors.ts'
import { mergeContext, type ToolContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type Caller, principalRecord } from '../../core/iam/caller.ts'
import type { Origin } from '../../core/invoke/call.ts'
import type { Services } from '../../core/process/services.ts'
import type { KnowledgeOverlay } from '../../execution/agents/knowledge.ts'
import { nestedTurnFields, type TurnInput } from '../../execution/generations/request/create.ts'
import { lockConversation } from '../conversations/store.ts'
import { clearMailbox, endCancelledTurns, mailboxState } from '../turns/mailbox.ts'
import type { SessionRow } from './model.ts'

/**
 * The tool context of a turn: the session's, then the request's, then what the platform says about session and end user, which
 * no caller can say.
 */
export function turnContext(session: SessionRow, sent: ToolContext | null | undefined): ToolContext {
  const said = {
    sessionId: session.id,
    ...(session.actor_id !== null && { actorId: session.actor_id }),
    ...(session.actor_external_id !== null && { actorExternalId: session.actor_external_id }),
  }
  return mergeContext(session.tool_context, sent, said)
}

/** A turn of the session's agent, whose messages are read when it starts. */
export const turnInput = (
  session: SessionRow,
  caller: Caller,
  turn: {
    generation_id?: string
    tool_context: ToolContext
    model?: string | null
    streamed: boolean
    knowledge_config?: KnowledgeOverlay
    origin: Origin | null
  },
): TurnInput => ({
  generation_id: turn.generation_id,
  project_id: session.project_id,
  agent_id: session.agent_id,
  messages: null,
  model: turn.model ?? null,
  overrides: turn.knowledge_config ? { knowledge_config: turn.knowledge_config } : {},
  tool_context: turn.tool_context,
  conversation_id: session.conversation_id,
  session_id: session.id,
  actor_id: session.actor_id,
  authority: principalRecord(caller),
  permission: { action: 'sessions:SendSessionMessage', kind: 'session', id: session.id },
  streamed: turn.streamed,
  shape: 'conversation',
  ...nestedTurnFields(turn.origin),
})

/** Cancels what waits and aborts what runs; all of it ends with the failure. */
export async function clearTurns(
  tx: Tx,
  services: Services,
  session: SessionRow,
  failure: RecordedFailure,
): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  if (conversation) await clearMailbox(tx, services, conversation, failure)
}

/** Cancels a queued automatic turn whose delay is not over. */
export async function cancelDelayedAutoTurn(tx: Tx, services: Services, session: SessionRow): Promise<void> {
  const { queued } = await mailboxState(tx, session.conversation_id)
  const idle = queued.filter(turn => turn.kind === 'auto' && !turn.due)
  if (idle.length > 0) await endCancelledTurns(tx, services, idle)
}
