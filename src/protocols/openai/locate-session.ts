import { z } from 'zod'
import { findMailboxState } from '#conversation/dialog/mailbox/mailbox.ts'
import { type ConversationRow, conversationKind } from '#conversation/dialog/messages/model.ts'
import { lockConversation, messageOrigin } from '#conversation/dialog/messages/store.ts'
import { branchSession, createClientSession } from '#conversation/sessions/create.ts'
import { ownsSession, requireNewSession } from '#conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import {
  findSessionByKey,
  insertSessionKey,
  moveSessionKey,
  type SessionKey,
} from '#conversation/sessions/session-keys.ts'
import { lockSessionAndConversation, requireOpen } from '#conversation/sessions/session-locks.ts'
import { isIdOf } from '#core/api/kind.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type AgentRow, findAgent } from '#execution/agents/model.ts'
import { type Alignment, alignTexts, listStoredTexts, type Spoken } from './align.ts'
import { limitHistory } from './history-limit.ts'
import { modelNotFound } from './models.ts'
import { SEND_ACTION } from './session.ts'
import type { PreviousResponse, TurnContext } from './turn-call.ts'

/** The session that a request continues, by a key, by a conversation, or by a previous response. */

/** A session with what a request adds to it: texts of the user after a history that the client brings. */
export type LocatedSession = { session: SessionRow; conversation: ConversationRow; added: Spoken[]; history: Spoken[] }

const textsOfUser = (spoken: readonly Spoken[]): Spoken[] => spoken.filter(({ role }) => role === 'user')

/** Returns the session of a key or of a conversation by its ID; null for a key without one. @throws RESOURCE_NOT_FOUND */
export const findKeyedSession = (db: Queryable, key: SessionKey): Promise<SessionRow | null> =>
  isIdOf(conversationKind, key.key) ? requireSessionOf(db, key) : findSessionByKey(db, key)

/**
 * Returns the session that a request with a key continues or begins; null for a question outside the conversation. All is
 * decided under the lock of the conversation, so that one of two concurrent requests runs.
 * @throws GENERATION_ALREADY_IN_PROGRESS, SESSION_CLOSED, SESSION_EXPIRED, RESOURCE_NOT_FOUND
 */
export async function locateByKey(
  tx: Tx,
  context: TurnContext,
  key: SessionKey,
  spoken: readonly Spoken[],
): Promise<LocatedSession | null> {
  const found = await findKeyedSession(tx, key)
  return found ? alignWithSession(tx, context, key, found, spoken) : createForKey(tx, context, key, spoken)
}

/** Creates the session of a new key, with the texts of the request before the last one of the user as its history. */
async function createForKey(
  tx: Tx,
  context: TurnContext,
  key: SessionKey,
  spoken: readonly Spoken[],
): Promise<LocatedSession> {
  const { body, allow, caller } = context
  const { project_id, agent_id, actor_id } = key
  allow(SEND_ACTION, { kind: sessionKind, project_id })
  if (caller.end_user) await requireNewSession(tx, caller.end_user, agent_id)
  const agent = await requireAgent(tx, key)
  const { session, conversation } = await createClientSession(tx, agent, { project_id, actor_id })
  // A concurrent request has created the session: the client repeats this one.
  if (!(await insertSessionKey(tx, key, session.id)))
    raise('GENERATION_ALREADY_IN_PROGRESS', { message: 'Another request has created the session', meta: { agent_id } })
  body.report.session_id = session.id
  const aligned = alignTexts(spoken, [])
  if (aligned.type !== 'import') return { session, conversation, history: [], added: textsOfUser(spoken) }
  const { history, added } = aligned
  await limitHistory(tx, caller, agent_id, history)
  return { session, conversation, history, added }
}

/** Returns the agent of a new session. @throws RESOURCE_NOT_FOUND */
async function requireAgent(tx: Tx, { agent_id }: Pick<SessionKey, 'agent_id'>): Promise<AgentRow> {
  const agent = await findAgent(tx, agent_id)
  if (!agent) throw modelNotFound(agent_id)
  return agent
}

const notFound = (param: string, id: string): AppError =>
  new AppError('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 200), param } })

/** Returns the session of a conversation by its ID. @throws RESOURCE_NOT_FOUND unless agent and end user are its own */
async function requireSessionOf(db: Queryable, { key, project_id, agent_id, actor_id }: SessionKey) {
  const conversation = await conversationKind.find(db, key)
  const session = conversation?.session_id ? await findSession(db, conversation.session_id) : null
  const isOwn = session?.project_id === project_id && session.agent_id === agent_id && session.actor_id === actor_id
  if (!session || !isOwn || session.hidden_at !== null) throw notFound('conversation', key)
  return session
}

/** Requires that the caller may send to a session. @throws RESOURCE_NOT_FOUND, FORBIDDEN */
export function requireSend({ allow, caller: { end_user } }: TurnContext, session: SessionRow): void {
  allow(SEND_ACTION, { kind: sessionKind, row: session })
  if (end_user && !ownsSession(session, end_user)) throw modelNotFound(session.agent_id)
}

/** Aligns a request with the session of its key, which may move the key to a fork or to a new session. */
async function alignWithSession(
  tx: Tx,
  context: TurnContext,
  key: SessionKey,
  found: SessionRow,
  spoken: readonly Spoken[],
): Promise<LocatedSession | null> {
  requireSend(context, found)
  const conversation = await lockConversation(tx, found.conversation_id)
  const session = await (isIdOf(conversationKind, key.key) ? findSession(tx, found.id) : findSessionByKey(tx, key))
  // It was deleted meanwhile: the client repeats the request.
  if (!conversation || !session)
    return raise('GENERATION_ALREADY_IN_PROGRESS', {
      message: 'The session of this key was deleted; repeat the request',
    })
  if (session.id !== found.id) return alignWithSession(tx, context, key, session, spoken)
  requireOpen(session)
  const aligned: Alignment = context.body.appends
    ? { type: 'append', added: textsOfUser(spoken) }
    : alignTexts(spoken, await listStoredTexts(tx, conversation.id))
  if (aligned.type === 'ephemeral') return null
  if (session.control === 'operator')
    return { session, conversation, added: aligned.type === 'fork' ? aligned.unstored : aligned.added, history: [] }
  await requireIdle(tx, conversation.id)
  const { added } = aligned
  if (aligned.type === 'append') return { session, conversation, added, history: [] }
  if (aligned.type === 'fork') return forkAfter(tx, context, { session, added, position: aligned.position, key })
  await limitHistory(tx, context.caller, key.agent_id, aligned.history)
  const agent = await requireAgent(tx, key)
  const { end_user } = context.caller
  if (end_user) await requireNewSession(tx, end_user, key.agent_id)
  const { project_id, actor_id } = key
  const made = await createClientSession(tx, agent, { project_id, actor_id })
  await moveSessionKey(tx, key, made.session.id)
  return { ...made, added, history: aligned.history }
}

/** Forks a session after a position, -1 for none; a key moves to the fork. */
async function forkAfter(
  tx: Tx,
  { caller: { end_user } }: TurnContext,
  {
    session,
    added,
    position,
    key,
  }: Pick<LocatedSession, 'session' | 'added'> & { position: number; key: SessionKey | null },
): Promise<LocatedSession> {
  const agent = await requireAgent(tx, session)
  if (end_user) await requireNewSession(tx, end_user, session.agent_id)
  const fork = await branchSession(tx, session, agent, position)
  if (key) await moveSessionKey(tx, key, fork.session.id)
  return { ...fork, added, history: [] }
}

/** @throws GENERATION_ALREADY_IN_PROGRESS while a turn is open */
async function requireIdle(tx: Tx, conversationId: string): Promise<void> {
  const { running, queued } = await findMailboxState(tx, conversationId)
  const first = running ?? queued[0]
  if (first) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: first.generation_id } })
}

const replyRow = sql.type(z.object({ position: z.int(), is_last: z.boolean() }))

/**
 * Returns the position of the reply of a turn, and whether neither the user nor the agent has said more. By
 * conversation_messages_generation.
 */
const findReply = (tx: Tx, conversationId: string, generationId: string) =>
  tx.maybeOne(replyRow`
    select r.position, not exists (
      select from conversation_messages m where m.conversation_id = r.conversation_id and m.position > r.position
        and ${messageOrigin} in ('end_user', 'agent')) as is_last
    from conversation_messages r where r.generation_id = ${generationId} and r.conversation_id = ${conversationId}`)

/** Returns the session of a previous response; null if it has none of this agent, or the session was deleted. */
export async function findPreviousSession(
  db: Queryable,
  { generation }: PreviousResponse,
  agentId: string,
): Promise<SessionRow | null> {
  if (generation.session_id === null || generation.agent_id !== agentId) return null
  return findSession(db, generation.session_id)
}

/**
 * Returns the session of a previous response if nothing follows the response in it, else a fork after the response.
 * @throws RESOURCE_NOT_FOUND for a response without a reply in the conversation; like locateByKey
 */
export async function locateByResponse(
  tx: Tx,
  context: TurnContext,
  found: SessionRow,
  { generation }: PreviousResponse,
  { spoken, key }: { spoken: readonly Spoken[]; key: SessionKey | null },
): Promise<LocatedSession> {
  requireSend(context, found)
  const { session, conversation } = await lockSessionAndConversation(tx, found)
  requireOpen(session)
  const reply = await findReply(tx, conversation.id, generation.id)
  if (!reply) throw notFound('previous_response_id', generation.id)
  const added = textsOfUser(spoken)
  if (session.control === 'operator') return { session, conversation, added, history: [] }
  await requireIdle(tx, conversation.id)
  if (reply.is_last) return { session, conversation, added, history: [] }
  return forkAfter(tx, context, { session, added, position: reply.position, key })
}

/**
 * Returns the ephemeral session of a turn: the session of the previous response if no turn followed it, else a new one, which
 * is then a fork.
 * @throws SESSION_CLOSED, FORBIDDEN
 */
export async function locateEphemeral(
  tx: Tx,
  context: TurnContext,
  agent: AgentRow,
  owner: { project_id: string; actor_id: string | null },
  previous: { session: SessionRow; generation: PreviousResponse['generation'] } | null,
): Promise<SessionRow> {
  if (previous) {
    requireSend(context, previous.session)
    const { session } = await lockSessionAndConversation(tx, previous.session)
    requireOpen(session)
    if (!(await hasLaterTurn(tx, session.id, previous.generation))) return session
  }
  const { session } = await createClientSession(tx, agent, {
    ...owner,
    ephemeral: true,
    forked_from_session_id: previous?.session.id,
  })
  return session
}

/** Whether another turn of a session began after a turn. By generations_session. */
const hasLaterTurn = (
  tx: Tx,
  sessionId: string,
  { id, created_at }: PreviousResponse['generation'],
): Promise<boolean> =>
  tx.exists(voidStatement`
    select from generations where session_id = ${sessionId} and created_at >= ${created_at}::timestamptz and id <> ${id}
      and initiator_generation_id is null`)
