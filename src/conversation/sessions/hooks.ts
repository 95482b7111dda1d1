import { redactFields } from '#control/events/redact.ts'
import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ActorRow } from '../actors/model.ts'
import type { SessionHooks, SettledTurn } from '../dialog/mailbox/hooks.ts'
import { appendMessage, lockConversation } from '../dialog/messages/store.ts'
import { findSession, sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'
import { INTERRUPTED } from './session-locks.ts'
import { setSessionState } from './state.ts'
import { findPairConflict, moveSessions, touchSession } from './store.ts'
import { requestTitle } from './title.ts'
import { turnContext } from './turns.ts'

/** Returns a session row from jsonb, with its turn ended. */
const withoutTurn = (json: object): SessionRow => ({
  ...(Object.fromEntries(
    Object.entries(json).map(([name, value]) => [
      name,
      name.endsWith('_at') && value !== null ? new Date(value).toISOString() : value,
    ]),
  ) as SessionRow),
  generating_at: null,
})

/** Appends the partial text of an interrupted turn at the position of its reply. */
async function appendPartial(tx: Tx, session: SessionRow, turn: SettledTurn): Promise<void> {
  const conversation = turn.partial ? await lockConversation(tx, session.conversation_id) : null
  if (!conversation || !turn.partial) return
  await appendMessage(tx, conversation, {
    role: 'assistant',
    content: turn.partial,
    actor_id: null,
    agent_id: turn.agent_id,
    generation_id: turn.generation_id,
    metadata: { interrupted: true },
    position: turn.reply_position,
  })
}

/** Extensions of conversation turns by their session. */
export const sessionTurnHooks: SessionHooks = {
  json: sql.fragment`(
    select to_jsonb(s) from (select ${sessionKind.columns} from sessions t where t.id = c.session_id) s)`,
  async load(db, sessionId) {
    const session = await findSession(db, sessionId)
    if (!session) return null
    const { id, project_id, agent_id, actor_id, status, control, assigned_to, knowledge_config, state } = session
    return {
      id,
      project_id,
      agent_id,
      actor_id,
      status,
      control,
      assigned_to,
      tool_context: turnContext(session, null),
      knowledge_config,
      state,
      row: session,
    }
  },
  started(outbox, { row }, turn) {
    outbox.emit(sessionKind, 'generation_started', row as SessionRow, { extra: turn })
  },
  async settled(tx, sessionId, turn) {
    const { generation_id, trace_id, status, error } = turn
    const session = turn.session ? withoutTurn(turn.session) : await findSession(tx, sessionId)
    if (!session) return
    if (status === 'completed') {
      tx.emit(sessionKind, 'generation_completed', session, { extra: { generation_id, trace_id } })
      const { agent_id, agent_version, names_session } = turn
      if (names_session && session.name === null && agent_version != null)
        await requestTitle(tx, session, { generation_id, agent_id, agent_version })
      return
    }
    if (status === 'requires_action') {
      const { required_action } = turn
      tx.emit(sessionKind, 'generation_requires_action', session, {
        extra: { generation_id, trace_id, required_action },
      })
      return
    }
    tx.emit(sessionKind, 'generation_failed', session, { extra: { generation_id, trace_id, error } })
    if (error?.meta?.reason === INTERRUPTED.meta?.reason) await appendPartial(tx, session, turn)
  },
  async stored(tx, sessionId, message) {
    if (message.role === 'user') touchSession(tx, sessionId)
  },
  async changeState(tx, sessionId, change) {
    const session = await findSession(tx, sessionId)
    if (!session) return null
    const { state } = await setSessionState(tx, session, change(session.state))
    return state
  },
  // The row is deleted with its conversation.
  async remove(tx, sessionId) {
    const session = await findSession(tx, sessionId)
    if (session) tx.emit(sessionKind, 'deleted', session)
  },
}

/** Reassigns the sessions of an actor. @throws SINGLE_SESSION_CONFLICT */
export async function moveActorSessions(tx: Tx, from: ActorRow, to: ActorRow): Promise<void> {
  const conflict = await findPairConflict(tx, from.id, to.id)
  if (conflict) raise('SINGLE_SESSION_CONFLICT', { meta: { session_id: conflict } })
  await moveSessions(tx, from.id, to.id)
}

const without = redactFields('error', 'required_action')

/** Erases errors and pending tool calls of turns in events of sessions. */
export const sessionContent: TurnContentEraser = {
  async erase(_tx, turns) {
    const sessions = new Set(turns.flatMap(({ session_id }) => session_id ?? []))
    const ids = new Set(turns.map(({ id }) => id))
    return {
      counts: {},
      events: [
        {
          resource_type: sessionKind.name,
          ids: [...sessions],
          names: ['sessions.generation_failed', 'sessions.generation_requires_action'],
          without: data => (ids.has(data.generation_id as string) ? without(data) : data),
        },
      ],
    }
  },
}
