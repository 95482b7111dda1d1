import type { Origin } from '#core/api/call.ts'
import type { ToolContext } from '#core/api/tool-context.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { KnowledgeOverlay } from '#execution/agents/knowledge.ts'
import type { ClientRequest } from '#execution/generations/model.ts'
import { nestedTurnFields, type TurnInput } from '#execution/generations/request/create.ts'
import { clearMailbox, endCancelledTurns, findMailboxState } from '../dialog/mailbox/mailbox.ts'
import { lockConversation } from '../dialog/messages/store.ts'
import { findSession, sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'

/** Returns the permission that the principal of a reply needs. */
export const replyPermission = ({ id }: Pick<SessionRow, 'id'>) => ({
  action: 'sessions:SendSessionMessage',
  kind: 'session',
  id,
})

/** Returns the input of a turn of the session's agent; messages are read when the turn starts. */
export const turnInput = (
  session: SessionRow,
  authority: PrincipalRecord,
  turn: {
    generation_id?: string
    tool_context: ToolContext
    model?: string | null
    client?: ClientRequest | null
    streamed: boolean
    knowledge_config?: KnowledgeOverlay
    origin: Origin | null
  } & Pick<
    Partial<TurnInput>,
    'overrides' | 'system_extra' | 'metadata' | 'shape' | 'unstored' | 'patience' | 'awaited'
  >,
): TurnInput => ({
  generation_id: turn.generation_id,
  project_id: session.project_id,
  agent_id: session.agent_id,
  messages: null,
  model: turn.model ?? null,
  overrides: {
    ...turn.overrides,
    ...(turn.knowledge_config && { knowledge_config: turn.knowledge_config }),
    ...(turn.client && { client: turn.client }),
  },
  system_extra: turn.system_extra,
  metadata: turn.metadata,
  unstored: turn.unstored,
  patience: turn.patience,
  awaited: turn.awaited,
  tool_context: turn.tool_context,
  conversation_id: session.conversation_id,
  session_id: session.id,
  actor_id: session.actor_id,
  authority,
  permission: replyPermission(session),
  streamed: turn.streamed,
  shape: turn.shape ?? 'conversation',
  ...nestedTurnFields(turn.origin),
})

/** Ends all open turns of a session with a failure. */
export async function clearTurns(
  tx: Tx,
  services: Services,
  session: SessionRow,
  failure: RecordedFailure,
): Promise<void> {
  const conversation = await lockConversation(tx, session.conversation_id)
  if (conversation) await clearMailbox(tx, services, conversation, failure)
}

/** Cancels a queued automatic turn whose delay has not passed. */
export async function cancelDelayedAutoTurn(tx: Tx, services: Services, session: SessionRow): Promise<void> {
  const { queued } = await findMailboxState(tx, session.conversation_id)
  const delayed = queued.filter(turn => turn.kind === 'auto' && !turn.due)
  if (delayed.length > 0) await endCancelledTurns(tx, services, delayed)
}

/** Aborts the running turn and cancels queued automatic turns; turns requested by callers stay queued. */
export async function cancelSession(tx: Tx, services: Services, id: string): Promise<SessionRow> {
  const session = await sessionKind.lock(tx, id)
  const { running, queued } = await findMailboxState(tx, session.conversation_id)
  const turns = [...(running ? [running] : []), ...queued.filter(turn => turn.kind === 'auto')]
  if (turns.length === 0) return session
  await endCancelledTurns(tx, services, turns)
  return (await findSession(tx, id)) ?? session
}
