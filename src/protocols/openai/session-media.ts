import { countUpload } from '#conversation/actors/limits.ts'
import { actorKind } from '#conversation/actors/model.ts'
import { requireUsableAgent } from '#conversation/sessions/end-user.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { findRunnableAgent, type RunnableAgent } from '#execution/generations/request/create-store.ts'
import { attachedBytes } from '#execution/generations/request/message-files.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { messagesAfterReplies } from './align.ts'
import { admitMedia, attachmentsIn, hasMedia, loadAttachments } from './client-media.ts'
import { findKeyedSession, requireSend } from './locate-session.ts'
import { modelNotFound } from './models.ts'
import { SEND_ACTION } from './session.ts'
import { NO_MEDIA, requireUpload, type StoredMessages, stageMedia } from './stored-media.ts'
import type { TurnContext } from './turn-call.ts'

/** The messages of a request with their images and files loaded, of which `stored` can be stored in a conversation. */
export type SessionMedia = { messages: ModelMessage[]; stored: StoredMessages['of']; discard(): Promise<void> }

/**
 * Loads the images and files of a request: of all its messages for a turn outside conversations, else of those that may be
 * added to the conversation. Requests without them cost no statement.
 * @param previous session of the previous response
 * @throws FORBIDDEN, RESOURCE_NOT_FOUND, FILE_NOT_FOUND, MEDIA_NOT_ACCEPTED, ACTOR_LIMIT_EXCEEDED
 */
export async function admitSessionMedia(
  context: TurnContext,
  projectId: string,
  previous: SessionRow | null,
  findActorId: () => Promise<string | null | undefined>,
): Promise<SessionMedia> {
  const { services, body, request } = context
  const { messages } = body.request
  if (!hasMedia(messages)) return { messages, stored: NO_MEDIA.of, discard: NO_MEDIA.discard }
  const agent = await requireAgentOf(context, projectId, previous, await findActorId())
  const isStored = previous ? !previous.ephemeral : body.key !== null
  if (!isStored) {
    await countAttachments(context, messages)
    const admitted = await admitMedia(context, projectId, agent, messages)
    return { messages: admitted, stored: NO_MEDIA.of, discard: NO_MEDIA.discard }
  }
  const own = previous && body.previous ? messages.slice(body.previous.message_count) : messagesAfterReplies(messages)
  requireUpload(context, projectId, own)
  await countAttachments(context, own)
  const loaded = await loadAttachments(services, projectId, own, request.closed)
  const { of, discard } = await stageMedia(context, projectId, agent, loaded)
  return { messages: [...messages.slice(0, messages.length - own.length), ...loaded], stored: of, discard }
}

/** Returns the agent after the permission check of its session, which may not exist yet. */
async function requireAgentOf(
  context: TurnContext,
  project_id: string,
  previous: SessionRow | null,
  actor_id: string | null | undefined,
): Promise<RunnableAgent> {
  const { services, allow, caller, body } = context
  const { agent_id, key } = body
  if (actor_id === undefined) allow('actors:CreateActor', { kind: actorKind, project_id })
  const isKnown = key !== null && actor_id !== undefined
  const session =
    previous ?? (isKnown ? await findKeyedSession(services.pool, { project_id, agent_id, actor_id, key }) : null)
  if (session) requireSend(context, session)
  else {
    allow(SEND_ACTION, { kind: sessionKind, project_id })
    if (caller.end_user) requireUsableAgent(caller.end_user, agent_id)
  }
  const subject = { actor_id: actor_id ?? null, session_id: session?.id ?? null }
  const agent = await findRunnableAgent(services.pool, agent_id, subject)
  // The settings of an agent of another project must not decide which error the caller gets.
  const isUsable =
    agent &&
    (agent.project_id === project_id ||
      (await findGrantingShares(services.pool, 'agent', project_id, [agent_id])).has(agent_id))
  if (!isUsable) throw modelNotFound(agent_id)
  return agent
}

/** Counts the bytes that an end user sends within messages. Raises ACTOR_LIMIT_EXCEEDED. */
async function countAttachments({ services, caller }: TurnContext, messages: readonly ModelMessage[]): Promise<void> {
  const bytes = attachmentsIn(messages).reduce((sum, part) => sum + attachedBytes(part), 0)
  if (caller.end_user && bytes > 0) await countUpload(services, caller.end_user, bytes)
}
