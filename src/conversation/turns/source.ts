import type { RecordedFailure } from '../../core/api/errors.ts'
import { sql } from '../../core/db/sql.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import type { TurnSource } from '../../execution/generations/loop/turn-owner.ts'
import { actorKind } from '../actors/model.ts'
import { type ConversationRow, messageEvents } from '../conversations/model.ts'
import { appendMessage, lockConversation } from '../conversations/store.ts'
import { type SessionFacts, sessionHooks } from './hooks.ts'
import { conversationDeletedFailure } from './mailbox.ts'
import type { Prompt } from './prompt.ts'
import { endedTurns, endTurns, type OpenTurn, openTurnOf, type TurnRow } from './store.ts'

/** A turn of the mailbox that is about to run, with its prompt unless an earlier attempt has kept it. */
export type PickedTurn = {
  conversation: ConversationRow
  turn: TurnRow
  /** Null without one, or when the prompt is kept. */
  session: SessionFacts | null
  prompt: Prompt | { refuse: RecordedFailure } | null
  /** Nothing waited behind it when it ended: whoever asks for a turn later sends a wake-up. */
  alone?: boolean
}

export const sessionOf = async (tx: Tx, { session_id }: ConversationRow): Promise<SessionFacts | null> =>
  (session_id !== null && (await sessionHooks.only()?.load(tx, session_id))) || null

/** What refuses a turn whose session does not take turns any more. */
export function sessionRefusal({ session_id }: ConversationRow, session: SessionFacts | null): RecordedFailure | null {
  if (session_id === null || session?.status === 'open') return null
  if (session?.status === 'expired')
    return { code: 'SESSION_EXPIRED', message: 'The session expired before its turn started' }
  return { code: 'SESSION_CLOSED', message: 'The session was closed before its turn started' }
}

/**
 * What a conversation adds to a turn: its prompt, the state of its row, the reply and where it goes. `complete` completes
 * the message of the mailbox with the end of its last turn.
 */
export function turnSource(picked: PickedTurn, complete: (outgoing: Outbox) => void): TurnSource {
  let held: { conversation: ConversationRow; turn: OpenTurn } | null = null
  return {
    async prepare() {
      if (!picked.prompt) throw new Error(`turn ${picked.turn.seq} of ${picked.conversation.id} was not prepared`)
      return { ...picked.prompt, knowledge_config: picked.session?.knowledge_config }
    },

    target: ({ kind, id }) =>
      [picked.session?.row, picked.conversation].find(row => row?.id === id && kind !== 'agent') ?? null,

    started(outgoing, { id, trace_id }) {
      if (picked.session) sessionHooks.only()?.started(outgoing, picked.session, { generation_id: id, trace_id })
    },

    async lock(tx, generation) {
      held = null
      // Before the conversation's lock: the delete of an actor goes the other way round.
      const speaks = picked.turn.actor_id !== null
      if (speaks) await actorKind.reference(tx, picked.turn.actor_id as string, picked.conversation.project_id)
      const conversation = await lockConversation(tx, picked.conversation.id)
      if (!conversation) return conversationDeletedFailure(picked.conversation.id)
      const turn = await openTurnOf(tx, generation.id)
      if (!turn) return conversationDeletedFailure(picked.conversation.id)
      held = { conversation, turn }
      picked.alone = turn.alone
      return turn.abort
    },

    async settle(tx, generation, outcome) {
      if (!held) return undefined
      const { conversation, turn } = held
      const { id: generation_id, trace_id, agent_id } = generation
      const reply_position = turn.seen_position === null ? undefined : turn.seen_position + 1
      let result: object | null = null
      if (outcome.status === 'completed') {
        const { message } = await appendMessage(tx, conversation, {
          role: 'assistant',
          content: outcome.content ?? '',
          actor_id: turn.actor_id,
          agent_id,
          generation_id,
          position: reply_position,
          beside: [sql.fragment`ended as (${endedTurns(conversation.id, [turn.seq], 'done')})`],
        })
        const named = { id: message.document_id, project_id: conversation.project_id }
        tx.emit(messageEvents, 'generated', named, { data: message, extra: { trace_id } })
        result = {
          status: 'completed',
          content: message.content,
          message: { ...message, model: outcome.model },
          model: outcome.model,
          generation_id,
          trace_id,
        }
      }
      if (outcome.status === 'failed') await endTurns(tx, conversation.id, [turn.seq], 'failed')
      if (turn.alone) complete(tx)
      if (conversation.session_id !== null)
        await sessionHooks.only()?.settled(tx, conversation.session_id, {
          generation_id,
          trace_id,
          status: outcome.status,
          error: outcome.error,
          agent_id,
          partial: outcome.status === 'failed' ? outcome.partial : null,
          reply_position,
          session: turn.session,
        })
      return { result }
    },

    async pause(tx, generation, { required_action, text, model }) {
      if (!held) return undefined
      const { conversation, turn } = held
      const { id: generation_id, trace_id, agent_id } = generation
      await endTurns(tx, conversation.id, [turn.seq], 'done')
      if (turn.alone) complete(tx)
      if (conversation.session_id !== null)
        await sessionHooks.only()?.settled(tx, conversation.session_id, {
          generation_id,
          trace_id,
          status: 'requires_action',
          error: null,
          required_action: generation.required_action,
          agent_id,
          partial: null,
          reply_position: undefined,
          session: turn.session,
        })
      const result = {
        status: 'requires_action',
        content: text,
        message: null,
        model,
        generation_id,
        trace_id,
        required_action,
      }
      return { result }
    },
  }
}
