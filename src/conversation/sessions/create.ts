import type { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { callerContext, type ToolContext } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { checkOverlay } from '#execution/agents/knowledge.ts'
import { type AgentRow, agentKind, findAgent } from '#execution/agents/model.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import { findOrCreateEndUser } from '../actors/create.ts'
import { actorKind } from '../actors/model.ts'
import { type ConversationRow, conversationKind } from '../dialog/messages/model.ts'
import { copySummary } from '../dialog/summaries/store.ts'
import { ownsSession, requireNewSession } from './end-user.ts'
import { expireLockedSessions } from './expire.ts'
import { findSession, sessionKind } from './kind.ts'
import type { ForkInput, SessionInput, SessionRow } from './model.ts'
import { findSessionByKey, insertSessionKey, lockSessionKey, moveSessionKey } from './session-keys.ts'
import {
  copyMessages,
  hasMessageAt,
  insertSession,
  listOpenSessions,
  lockPair,
  type SessionValues,
  updateSession,
} from './store.ts'

/**
 * Returns the agent of a new session: an agent of the project with a lock against its deletion, or a shared one with a
 * lock on its share; null if there is none.
 */
async function findSessionAgent(tx: Tx, projectId: string, id: string): Promise<AgentRow | null> {
  const agent = await agentKind.reference(tx, id, projectId)
  if (agent || !isIdOf(agentKind, id)) return agent
  const shared = await findGrantingShares(tx, 'agent', projectId, [id], true)
  return shared.has(id) ? findAgent(tx, id) : null
}

/** Like findSessionAgent. @throws AGENT_NOT_FOUND */
const requireSessionAgent = async (tx: Tx, projectId: string, id: string): Promise<AgentRow> =>
  (await findSessionAgent(tx, projectId, id)) ?? raise('AGENT_NOT_FOUND', { meta: { id } })

/**
 * Returns the project of an agent, for sessions without a project.
 * @throws AGENT_NOT_FOUND for a missing agent or an agent of a project that the caller may not read
 */
export async function projectOfAgent(
  body: Record<string, unknown>,
  db: Queryable,
  caller: Caller,
): Promise<string | null> {
  if (typeof body.agent_id !== 'string') return null
  const agent = await findAgent(db, body.agent_id)
  if (!agent || !canSeeProject(caller, agent.project_id))
    return raise('AGENT_NOT_FOUND', { meta: { id: body.agent_id } })
  return agent.project_id
}

/**
 * Checks `single_session_per_actor`: no other open session of agent and end user. Overdue sessions are expired first.
 * Locks the pair until the transaction ends; must be called before a conversation is locked, which is the lock order
 * everywhere.
 * @throws SINGLE_SESSION_CONFLICT with `meta { session_id }`
 */
export async function requireSingleSession(tx: Tx, agentId: string, actorId: string): Promise<void> {
  await lockPair(tx, agentId, actorId)
  const open = await listOpenSessions(tx, agentId, actorId)
  const overdue = open.filter(session => session.status === 'expired').map(session => session.id)
  for (const id of overdue) await findSession(tx, id, true)
  const expired = new Set((await expireLockedSessions(tx, overdue)).map(session => session.id))
  const other = open.find(session => !expired.has(session.id))
  if (other) raise('SINGLE_SESSION_CONFLICT', { meta: { session_id: other.id } })
}

type NewSession = Omit<SessionValues, 'id' | 'conversation_id'>

/** Inserts a session with an empty conversation. The caller emits the events with `emitCreated` afterwards. */
async function insertSessionWithConversation(
  tx: Tx,
  values: NewSession,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  const id = newId(sessionKind.prefix)
  const { project_id, name, actor_id } = values
  const conversation = await conversationKind.insert(tx, { project_id, name, actor_id, session_id: id })
  const session = await insertSession(tx, { ...values, id, conversation_id: conversation.id })
  return { session, conversation }
}

function emitCreated(tx: Tx, session: SessionRow, conversation: ConversationRow): void {
  tx.emit(conversationKind, 'created', conversation)
  tx.emit(sessionKind, 'created', session)
}

/** Refuses an agent outside the project, with a specific message if the caller may read the agent. */
async function refuseAgent(db: Queryable, caller: Caller, id: string): Promise<never> {
  const agent = caller.project_id === null ? await findAgent(db, id) : null
  if (agent && canSeeProject(caller, agent.project_id))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'project_id', message: 'must be the project of the agent' })
  return raise('AGENT_NOT_FOUND', { meta: { id } })
}

/**
 * Creates a session with its conversation; with a key of the client, returns the session that has it.
 * @throws AGENT_NOT_FOUND, ACTOR_NOT_FOUND, ACTOR_LIMIT_EXCEEDED, INVALID_TOOL_CONTEXT_KEY, SINGLE_SESSION_CONFLICT;
 *   VALIDATION_FAILED for a project other than the agent's
 */
export async function createSession(
  context: Pick<
    Context<unknown, z.output<typeof SessionInput>>,
    'tx' | 'services' | 'body' | 'project' | 'caller' | 'allow' | 'client'
  >,
): Promise<SessionRow> {
  const { tx, services, body, caller } = context
  const project_id = context.project as string
  const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  const agent = await findSessionAgent(tx, project_id, body.agent_id)
  if (!agent) return refuseAgent(tx, caller, body.agent_id)
  if (body.knowledge_config) await checkOverlay(context, agent, project_id, body.knowledge_config)
  const { end_user } = caller
  let actor_id = end_user?.actor_id ?? body.actor_id ?? null
  if (body.actor) {
    context.allow('actors:CreateActor', { kind: actorKind, project_id })
    const { actor } = await findOrCreateEndUser(tx, context, { ...body.actor, project_id })
    actor_id = actor.id
  } else if (actor_id !== null && !(await actorKind.reference(tx, actor_id, project_id)))
    raise('ACTOR_NOT_FOUND', { meta: { id: actor_id } })
  const { session_key } = context.client ?? {}
  const key = session_key === undefined ? null : { project_id, agent_id: agent.id, actor_id, key: session_key }
  if (key) {
    await lockSessionKey(tx, key)
    const existing = await findSessionByKey(tx, key)
    if (existing && (!end_user || ownsSession(existing, end_user))) return existing
  }
  if (end_user) await requireNewSession(tx, end_user, agent.id)
  if (agent.single_session_per_actor && actor_id !== null) await requireSingleSession(tx, agent.id, actor_id)
  const { session, conversation } = await insertSessionWithConversation(tx, {
    project_id,
    agent_id: agent.id,
    name: body.name ?? null,
    actor_id,
    tags: body.tags ?? {},
    auto_generate: body.auto_generate ?? false,
    message_delay_seconds: body.message_delay_seconds ?? null,
    inactivity_ttl_seconds: body.inactivity_ttl_seconds ?? 0,
    takeover_timeout_seconds: body.takeover_timeout_seconds ?? null,
    tool_context,
    knowledge_config: body.knowledge_config ?? null,
  })
  if (key && !(await insertSessionKey(tx, key, session.id))) await moveSessionKey(tx, key, session.id)
  emitCreated(tx, session, conversation)
  return session
}

/** A session of a client of a chat protocol, which finds it by a key. */
export async function createClientSession(
  tx: Tx,
  agent: Pick<AgentRow, 'id' | 'single_session_per_actor'>,
  values: Pick<NewSession, 'project_id' | 'actor_id' | 'ephemeral' | 'forked_from_session_id'>,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  const { actor_id, ephemeral = false } = values
  if (agent.single_session_per_actor && actor_id !== null && !ephemeral)
    await requireSingleSession(tx, agent.id, actor_id)
  const made = await insertSessionWithConversation(tx, {
    name: null,
    tags: {},
    auto_generate: false,
    message_delay_seconds: null,
    inactivity_ttl_seconds: 0,
    takeover_timeout_seconds: null,
    tool_context: null,
    knowledge_config: null,
    agent_id: agent.id,
    ...values,
  })
  emitCreated(tx, made.session, made.conversation)
  return made
}

/**
 * Forks a session with its end user and settings, up to and including a position; -1 copies no messages. The parent is
 * closed if its agent allows one session per end user. Requires the lock of the parent.
 */
export async function branchSession(
  tx: Tx,
  parent: SessionRow,
  agent: Pick<AgentRow, 'single_session_per_actor'>,
  until: number,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  if (agent.single_session_per_actor && parent.status === 'open')
    tx.emit(sessionKind, 'closed', await updateSession(tx, parent.id, { status: 'closed' }))
  const { session, conversation } = await insertSessionWithConversation(tx, {
    project_id: parent.project_id,
    agent_id: parent.agent_id,
    name: parent.name,
    actor_id: parent.actor_id,
    tags: parent.tags,
    auto_generate: false,
    message_delay_seconds: parent.message_delay_seconds,
    inactivity_ttl_seconds: parent.inactivity_ttl_seconds,
    takeover_timeout_seconds: parent.takeover_timeout_seconds,
    tool_context: parent.tool_context,
    knowledge_config: parent.knowledge_config,
    forked_from_session_id: parent.id,
    forked_from_position: until < 0 ? null : until,
  })
  const copied = await copyHistory(tx, parent, conversation, until)
  emitCreated(tx, session, copied)
  return { session, conversation: copied }
}

/** Copies the messages of a session up to a position, or all, and the summary of them, to the conversation of a fork. */
async function copyHistory(
  tx: Tx,
  parent: SessionRow,
  conversation: ConversationRow,
  until: number | null,
): Promise<ConversationRow> {
  const copy = { from: parent.conversation_id, to: conversation.id, until }
  const message_count = await copyMessages(tx, copy)
  await copySummary(tx, copy)
  return { ...conversation, message_count }
}

/**
 * Forks a session in any status: creates a session with the messages up to a position, which share their texts.
 * @param toolContext replaces the parent's if set; null clears it
 * @throws VALIDATION_FAILED without a message at the position, AGENT_NOT_FOUND for an agent outside the parent's
 *   project
 */
export async function forkSession(
  tx: Tx,
  parentId: string,
  input: z.output<typeof ForkInput>,
  toolContext: ToolContext | null | undefined,
): Promise<SessionRow> {
  const parent = await sessionKind.lock(tx, parentId)
  const agentId = input.agent_id ?? parent.agent_id
  if (agentId !== parent.agent_id) await requireSessionAgent(tx, parent.project_id, agentId)
  const until = input.fork_at_position ?? null
  if (until !== null && !(await hasMessageAt(tx, parent.conversation_id, until)))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'fork_at_position', message: 'must be the position of a message' })
  const { session, conversation } = await insertSessionWithConversation(tx, {
    project_id: parent.project_id,
    agent_id: agentId,
    name: input.name ?? null,
    actor_id: null,
    tags: input.tags ?? {},
    auto_generate: false,
    message_delay_seconds: parent.message_delay_seconds,
    inactivity_ttl_seconds: parent.inactivity_ttl_seconds,
    takeover_timeout_seconds: parent.takeover_timeout_seconds,
    tool_context: toolContext === undefined ? parent.tool_context : toolContext,
    // Was authorized for the parent's agent only.
    knowledge_config: agentId === parent.agent_id ? parent.knowledge_config : null,
    forked_from_session_id: parent.id,
    forked_from_position: until,
  })
  emitCreated(tx, session, await copyHistory(tx, parent, conversation, until))
  return session
}
