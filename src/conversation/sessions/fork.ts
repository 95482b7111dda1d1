import type { z } from 'zod'
import { raiseInvalid } from '../../core/api/errors.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/writer.ts'
import { addSession, emitCreated, sessionAgent } from './create.ts'
import { sessionKind } from './kind.ts'
import type { ForkInput, SessionRow } from './model.ts'
import { copyMessages, hasMessageAt } from './store.ts'

/**
 * Forks a session: a new one whose conversation holds the parent's messages up to a position, the same texts.
 * The parent may have any status.
 * @param toolContext replaces the parent's when given; null clears it
 * @throws VALIDATION_FAILED without a message at the position, AGENT_NOT_FOUND for an agent outside the parent's project
 */
export async function forkSession(
  tx: Tx,
  parentId: string,
  input: z.output<typeof ForkInput>,
  toolContext: ToolContext | null | undefined,
): Promise<SessionRow> {
  const parent = await sessionKind.lock(tx, parentId)
  const agentId = input.agent_id ?? parent.agent_id
  if (agentId !== parent.agent_id) await sessionAgent(tx, parent.project_id, agentId)
  const until = input.fork_at_position ?? null
  if (until !== null && !(await hasMessageAt(tx, parent.conversation_id, until)))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'fork_at_position', message: 'is not the position of a message' })
  const { session, conversation } = await addSession(tx, {
    project_id: parent.project_id,
    agent_id: agentId,
    name: input.name ?? null,
    actor_id: null,
    tags: input.tags ?? {},
    auto_generate: false,
    message_delay_seconds: parent.message_delay_seconds,
    inactivity_ttl_seconds: parent.inactivity_ttl_seconds,
    tool_context: toolContext === undefined ? parent.tool_context : toolContext,
    // It was allowed for what the parent's agent knows.
    knowledge_config: agentId === parent.agent_id ? parent.knowledge_config : null,
    forked_from_session_id: parent.id,
    forked_from_position: until,
  })
  const message_count = await copyMessages(tx, { from: parent.conversation_id, to: conversation.id, until })
  emitCreated(tx, session, { ...conversation, message_count })
  return session
}
