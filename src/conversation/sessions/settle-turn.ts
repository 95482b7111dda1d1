import type { RecordedFailure } from '#core/base/errors.ts'
import { rowFromJson, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import type { ConversationRow } from '../dialog/messages/model.ts'
import { appendMessage, lockConversation } from '../dialog/messages/store.ts'
import { findSession, sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'
import { INTERRUPTED } from './session-locks.ts'
import { requestTitle } from './title.ts'

/** The end or the pause of a turn. */
export type SettledTurn = {
  generation_id: string
  trace_id: string
  agent_id: string
  /** The row from `sessionJson`, read while the turn ran; null if it was not read. */
  session: object | null
} & (
  | {
      status: 'completed'
      /** The document of the reply. */
      document_id: string
      agent_version: number | null
      /** Whether the agent names its sessions. */
      names_session: boolean
    }
  /** `required_action` of a turn with stored content. */
  | { status: 'requires_action'; required_action: Record<string, unknown> | null }
  | FailedTurn
)

type FailedTurn = {
  status: 'failed'
  error: RecordedFailure | null
  /** Text streamed when the turn was ended. */
  partial?: string | null
  /** Position of the reply. */
  reply_position?: number
}

/** The session of a conversation `c` as jsonb, for statements that read it with other rows. */
export const sessionJson = sql.fragment`(
    select to_jsonb(s) from (select ${sessionKind.columns} from sessions t where t.id = c.session_id) s)`

/** Returns a session row from jsonb, with its turn ended. */
const withoutTurn = (json: object): SessionRow => ({ ...(rowFromJson(json) as SessionRow), generating_at: null })

/**
 * Settles a turn in the session of its conversation: the frame of its streams, its event, the name that the agent gives it,
 * and the partial text of an interrupted turn. Does nothing without a session. Requires lockConversation.
 */
export async function settleSessionTurn(
  tx: Tx,
  owner: Pick<ConversationRow, 'session_id'> & { streamed?: boolean },
  turn: SettledTurn,
): Promise<void> {
  if (owner.session_id === null) return
  const session = turn.session ? withoutTurn(turn.session) : await findSession(tx, owner.session_id)
  if (!session) return
  const { generation_id, trace_id, agent_id, status } = turn
  if (status === 'completed') {
    const { document_id, agent_version, names_session } = turn
    addSessionFrame(tx, owner, { event: 'turn_completed', generation_id, document_id })
    tx.emit(sessionKind, 'generation_completed', session, { extra: { generation_id, trace_id } })
    if (names_session && session.name === null && agent_version !== null)
      await requestTitle(tx, session, { generation_id, agent_id, agent_version })
    return
  }
  if (status === 'requires_action') {
    const { required_action } = turn
    addSessionFrame(tx, owner, { event: 'requires_action', generation_id })
    tx.emit(sessionKind, 'generation_requires_action', session, {
      extra: { generation_id, trace_id, required_action },
    })
    return
  }
  const { error } = turn
  tx.emit(sessionKind, 'generation_failed', session, { extra: { generation_id, trace_id, error } })
  if (error?.meta?.reason === INTERRUPTED.meta?.reason) await appendPartial(tx, session, turn)
  addSessionFrame(tx, owner, { event: 'turn_failed', generation_id })
}

/** Appends the partial text of an interrupted turn at the position of its reply. */
async function appendPartial(tx: Tx, session: SessionRow, turn: SettledTurn & FailedTurn): Promise<void> {
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
