import { type EndUserAccess, endUserFailure, endUserView, showToEndUser } from '#core/api/end-user.ts'
import { raise } from '#core/base/errors.ts'
import { allOf, countStatement, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { EndUser, EndUserScope } from '#core/iam/caller.ts'
import { approvalView } from '#execution/approvals/end-user.ts'
import { messageView, mountEventViews, turnEventViews, turnResultView } from '#execution/generations/end-user.ts'
import { STREAM_PARAMETERS } from '#execution/generations/streams/tickets.ts'
import { raiseLimit } from '../actors/limits.ts'
import { messageOrigin } from '../dialog/messages/store.ts'
import type { SessionRow } from './model.ts'

/** Access of end users to their sessions. */

const sessionView = endUserView(
  {
    id: true,
    agent_id: true,
    status: true,
    name: true,
    control: true,
    // Without the principal in `by`.
    attention: attention =>
      attention && { reason: attention.reason, urgency: attention.urgency, since: attention.since },
    created_at: true,
    updated_at: true,
    last_activity_at: true,
    unread_count: true,
  },
  [
    'project_id',
    'conversation_id',
    'actor_id',
    'auto_generate',
    'message_delay_seconds',
    'inactivity_ttl_seconds',
    'takeover_timeout_seconds',
    'assigned_to',
    'assignee_name',
    'assigned_at',
    'tool_context',
    'knowledge_config',
    'generating_at',
    'queued_turns',
    'forked_from_session_id',
    'forked_from_position',
    'ephemeral',
    'tags',
    'state',
    'title_error',
    'summary_error',
    'actor_name',
    'actor_external_id',
    'agent_name',
    'last_message',
  ],
)

/** Response to a sent message, with the result of an awaited turn. */
const storedMessageView = endUserView({
  role: true,
  content: true,
  // An end user sends no documents.
  parts: true,
  document_id: true,
  position: true,
  created_at: true,
  generation_id: true,
  reply: reply => reply && showToEndUser(turnResultView, reply),
})

/** Whether a session belongs to an end user and is not deleted by it. */
export const ownsSession = (
  { id, actor_id, agent_id, hidden_at }: Pick<SessionRow, 'id' | 'actor_id' | 'agent_id' | 'hidden_at'>,
  { actor_id: own, agent_ids, session_ids }: EndUser,
): boolean =>
  actor_id === own && agent_ids.includes(agent_id) && (session_ids?.includes(id) ?? true) && hidden_at === null

/** Requires that an end user may have another session with an agent. @throws AGENT_NOT_FOUND, FORBIDDEN */
export function requireUsableAgent({ agent_ids, session_ids }: EndUser, agentId: string): void {
  if (!agent_ids.includes(agentId)) raise('AGENT_NOT_FOUND', { meta: { id: agentId } })
  if (session_ids !== null) raise('FORBIDDEN')
}

/** Condition of the sessions `t` that `ownsSession` accepts. By sessions_actor. */
const ownSessions = ({ actor_id, agent_ids, session_ids }: EndUser): Fragment =>
  allOf([
    sql.fragment`t.actor_id = ${actor_id}`,
    sql.fragment`t.agent_id = any(${sql.array([...agent_ids], 'text')})`,
    session_ids && sql.fragment`t.id = any(${sql.array([...session_ids], 'text')})`,
    sql.fragment`t.hidden_at is null`,
  ])

/** Whether a session by id belongs to an end user. Primary key. */
export const isOwnSession = (db: Queryable, endUser: EndUser, id: string): Promise<boolean> =>
  db.exists(voidStatement`select from sessions t where t.id = ${id} and ${ownSessions(endUser)}`)

/** Select of the ids of the sessions of an end user. */
export const ownSessionIds = (endUser: EndUser): Fragment =>
  sql.fragment`select t.id from sessions t where ${ownSessions(endUser)}`

/** Access to an operation on an own session that returns the session or nothing. */
export const sessionAccess = (
  access: Omit<EndUserAccess<SessionRow>, 'scope' | 'owns'> & { scope?: EndUserScope } = {},
): EndUserAccess<SessionRow> => ({
  scope: 'chat',
  owns: ownsSession,
  view: sessionView,
  ...access,
})

export const createAccess: EndUserAccess = { scope: 'chat', fields: ['agent_id', 'name'], view: sessionView }

export const listAccess: EndUserAccess = {
  scope: 'chat',
  query: ['agent_id', 'status', 'name'],
  rows: ownSessions,
  view: sessionView,
}

/** An end user closes its sessions, and does not reopen them. */
export const patchAccess = sessionAccess({
  fields: ['name', 'status'],
  refuses: ({ status }) => (status === undefined || status === 'closed' ? undefined : 'status'),
})

export const messagesAccess = sessionAccess({ query: ['role', 'origin'], view: messageView })

export const sendAccess = sessionAccess({
  fields: ['message', 'parts', 'idempotency_key'],
  refuses: ({ parts }) => (Array.isArray(parts) && parts.some(part => part?.type === 'document') ? 'parts' : undefined),
  query: ['wait'],
  sends: true,
  view: storedMessageView,
})

const turnAccess = { query: ['wait'], view: turnResultView, events: turnEventViews, mountEvents: mountEventViews }
export const generateAccess = sessionAccess({ ...turnAccess, fields: ['stream'], starts: true })
export const outputsAccess = sessionAccess({ ...turnAccess, fields: ['generation_id', 'tool_outputs', 'stream'] })

/** Events of a session's stream; `message` omits messages of hidden origins, which are not sent to end users. */
const streamEventViews = {
  ready: endUserView({
    session: session => showToEndUser(sessionView, session),
    generation_id: true,
    position: true,
  }),
  gap: endUserView(['after']),
  message: messageView,
  message_updated: endUserView({ document_id: true, message: message => showToEndUser(messageView, message) }),
  message_deleted: endUserView(['document_id']),
  turn_started: endUserView(['generation_id']),
  turn_text: endUserView(['generation_id', 'text']),
  delta: endUserView(['generation_id', 'choices']),
  tool: endUserView(['generation_id', 'tool_call_id', 'state', 'label', 'ok'], ['tool_name']),
  requires_action: endUserView(['generation_id', 'tool_calls']),
  turn_completed: endUserView(['generation_id', 'document_id']),
  turn_failed: endUserView({ generation_id: true, error: endUserFailure }),
  approval: approvalView,
  control: endUserView({ control: true, attention: sessionView.shown.attention, reason: true }, ['assigned_to']),
  session: sessionView,
  typing: endUserView(['who', 'state'], ['actor_id']),
}

export const streamAccess = sessionAccess({ query: STREAM_PARAMETERS, events: streamEventViews })
export const typingAccess = sessionAccess({ fields: ['state'] })
export const readAccess = sessionAccess({ fields: ['position'] })

/** Origins of the messages that an end user sees. */
export const shownOrigins = ['end_user', 'agent', 'operator'] as const

/** Condition of the messages `m` that an end user sees. */
export const isShown: Fragment = sql.fragment`${messageOrigin} = any(${sql.array([...shownOrigins], 'text')})`

/**
 * Requires that an end user may create a session with an agent. Locks the actor, so that concurrent creates are counted.
 * @throws AGENT_NOT_FOUND, FORBIDDEN for a token of listed sessions, ACTOR_LIMIT_EXCEEDED
 */
export async function requireNewSession(tx: Queryable, endUser: EndUser, agentId: string): Promise<void> {
  const { actor_id, limits } = endUser
  requireUsableAgent(endUser, agentId)
  await tx.query(voidStatement`select from actors where id = ${actor_id} for no key update`)
  const open = await tx.oneFirst(countStatement`
    select count(*)::int as count from sessions t
    where t.actor_id = ${actor_id} and t.status = 'open' and not t.ephemeral and t.hidden_at is null
      and coalesce(t.expires_at > now(), true)`)
  if (open >= limits.open_sessions) raiseLimit(endUser, 'open_sessions')
}
