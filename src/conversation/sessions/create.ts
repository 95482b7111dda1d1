import type { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { checkOverlay } from '../../execution/agents/knowledge.ts'
import { type AgentRow, agentKind, findAgent } from '../../execution/agents/model.ts'
import { grantingShares } from '../../execution/shares/grants.ts'
import { findOrCreateActor } from '../actors/find-or-create.ts'
import { actorKind } from '../actors/model.ts'
import { type ConversationRow, conversationKind } from '../conversations/model.ts'
import { expireLocked } from './expire.ts'
import { findSession, sessionKind } from './kind.ts'
import type { SessionInput, SessionRow } from './model.ts'
import { insertSession, lockPair, openSessionsOf, type SessionValues } from './store.ts'

/**
 * The agent that a session of a project may have: one of the project, kept from being deleted, or one that is shared with
 * it, by a share that stays until the transaction ends; null for any other.
 */
async function agentFor(tx: Tx, projectId: string, id: string): Promise<AgentRow | null> {
  const own = await agentKind.reference(tx, id, projectId)
  if (own || !isIdOf(agentKind, id)) return own
  const shared = await grantingShares(tx, 'agent', projectId, [id], true)
  return shared.has(id) ? findAgent(tx, id) : null
}

/** The same. Raises AGENT_NOT_FOUND for any other. */
export const sessionAgent = async (tx: Tx, projectId: string, id: string): Promise<AgentRow> =>
  (await agentFor(tx, projectId, id)) ?? raise('AGENT_NOT_FOUND', { meta: { id } })

/**
 * The project of a session that names none: its agent's.
 * @throws AGENT_NOT_FOUND for an agent that does not exist, or of a project that the caller does not see
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
 * The rule of `single_session_per_actor`: no other open session of agent and end user. Sessions past their time to live
 * are expired on the spot and do not count. Holds the pair until the transaction ends; called before the lock of a
 * conversation is taken, which is the order everywhere.
 * @throws SINGLE_SESSION_CONFLICT with `meta { session_id }`
 */
export async function requireSingleSession(tx: Tx, agentId: string, actorId: string): Promise<void> {
  await lockPair(tx, agentId, actorId)
  const open = await openSessionsOf(tx, agentId, actorId)
  const overdue = open.filter(session => session.status === 'expired').map(session => session.id)
  for (const id of overdue) await findSession(tx, id, true)
  const expired = new Set((await expireLocked(tx, overdue)).map(session => session.id))
  const other = open.find(session => !expired.has(session.id))
  if (other) raise('SINGLE_SESSION_CONFLICT', { meta: { session_id: other.id } })
}

type NewSession = Omit<SessionValues, 'id' | 'conversation_id'>

/** Adds a session with its conversation, which starts empty. The events are `emitCreated`'s, once all is in place. */
export async function addSession(
  tx: Tx,
  values: NewSession,
): Promise<{ session: SessionRow; conversation: ConversationRow }> {
  const id = newId(sessionKind.prefix)
  const { project_id, name, actor_id } = values
  const conversation = await conversationKind.insert(tx, { project_id, name, actor_id, session_id: id })
  const session = await insertSession(tx, { ...values, id, conversation_id: conversation.id })
  return { session, conversation }
}

export function emitCreated(tx: Tx, session: SessionRow, conversation: ConversationRow): void {
  tx.emit(conversationKind, 'created', conversation)
  tx.emit(sessionKind, 'created', session)
}

/** Refuses an agent that is not one of the project; who may know of it gets to know what is wrong. */
async function refuseAgent(db: Queryable, caller: Caller, id: string): Promise<never> {
  const elsewhere = caller.project_id === null ? await findAgent(db, id) : null
  if (elsewhere && canSeeProject(caller, elsewhere.project_id))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'project_id', message: 'is not the project of the agent' })
  return raise('AGENT_NOT_FOUND', { meta: { id } })
}

/**
 * POST /sessions: the session and its conversation in one transaction.
 * @throws AGENT_NOT_FOUND, ACTOR_NOT_FOUND, INVALID_TOOL_CONTEXT_KEY, SINGLE_SESSION_CONFLICT; VALIDATION_FAILED for a
 * named project that is not the agent's
 */
export async function createSession(
  context: Pick<
    Context<unknown, z.output<typeof SessionInput>>,
    'tx' | 'services' | 'body' | 'project' | 'caller' | 'allow'
  >,
): Promise<SessionRow> {
  const { tx, services, body, caller } = context
  const project_id = context.project as string
  const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  const agent = await agentFor(tx, project_id, body.agent_id)
  if (!agent) return refuseAgent(tx, caller, body.agent_id)
  if (body.knowledge_config) await checkOverlay(context, agent, project_id, body.knowledge_config)
  let actor_id = body.actor_id ?? null
  if (body.actor) {
    context.allow('actors:CreateActor', { kind: actorKind, project_id })
    const made = await findOrCreateActor(tx, { ...body.actor, project_id })
    if (!('existing' in made)) tx.emit(actorKind, 'created', made)
    actor_id = 'existing' in made ? made.existing.id : made.id
  } else if (actor_id !== null && !(await actorKind.reference(tx, actor_id, project_id)))
    raise('ACTOR_NOT_FOUND', { meta: { id: actor_id } })
  if (agent.single_session_per_actor && actor_id !== null) await requireSingleSession(tx, agent.id, actor_id)
  const { session, conversation } = await addSession(tx, {
    project_id,
    agent_id: agent.id,
    name: body.name ?? null,
    actor_id,
    tags: body.tags ?? {},
    auto_generate: body.auto_generate ?? false,
    message_delay_seconds: body.message_delay_seconds ?? null,
    inactivity_ttl_seconds: body.inactivity_ttl_seconds ?? 0,
    tool_context,
    knowledge_config: body.knowledge_config ?? null,
  })
  emitCreated(tx, session, conversation)
  return session
}
