import { actorKind } from '#conversation/actors/model.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { type SettledTurn, settleSessionTurn } from '#conversation/sessions/settle-turn.ts'
import { changeSessionState } from '#conversation/sessions/state.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { type Fragment, rowFromJson, sql } from '#core/db/sql.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { TurnOutcome, TurnSource } from '#execution/generations/loop/turn-owner.ts'
import type { LoadedTurn } from '#execution/generations/loop/turn-store.ts'
import type { GenerationRow } from '#execution/generations/model.ts'
import { type ConversationRow, messageEvents } from '../messages/model.ts'
import {
  appendMessage,
  findMediaDescription,
  lockConversation,
  lockConversationAhead,
  type MessageDraft,
  setMediaDescription,
} from '../messages/store.ts'
import { summaryWorkCte } from '../summaries/store.ts'
import { summaryWork } from '../summaries/summarize.ts'
import { conversationDeletedFailure, wakeConversation } from './mailbox.ts'
import type { Prompt } from './prompt.ts'
import { replyHashCtes } from './reply-hash.ts'
import { endedTurns, endTurns, lockSettlingTurn, type SettlingTurn, type TurnRow } from './store.ts'

/** A turn that was taken from the mailbox to be executed. */
export type ClaimedTurn = {
  conversation: ConversationRow
  turn: TurnRow
  /** Null if the conversation has none, or if an earlier attempt has stored the prompt. */
  session: SessionRow | null
  /** Null if an earlier attempt has stored it. */
  prompt: Prompt | { refuse: RecordedFailure } | null
  /** Turn of an agent that starts. */
  loaded: LoadedTurn | null
}

/** Whether the turn was requested by a client that receives the result of the agent, with all its steps. */
const isAgentShaped = ({ shape }: { shape: 'agent' | 'conversation' }): boolean => shape === 'agent'

export const sessionOf = async (tx: Tx, { session_id }: ConversationRow): Promise<SessionRow | null> =>
  session_id === null ? null : findSession(tx, session_id)

/** Returns the refusal of a turn whose session is closed or expired, or null. */
export function sessionRefusal({ session_id }: ConversationRow, session: SessionRow | null): RecordedFailure | null {
  if (session_id === null || session?.status === 'open') return null
  if (session?.status === 'expired')
    return { code: 'SESSION_EXPIRED', message: `Session ${session_id} expired before the turn started` }
  return { code: 'SESSION_CLOSED', message: `Session ${session_id} was closed before the turn started` }
}

/** Requests a summary of older messages if the context of a turn is nearly full, and returns the cte of the request. */
function requestSummary(
  tx: Tx,
  { id: conversation_id, project_id }: ConversationRow,
  { agent_id, agent_version }: GenerationRow,
  { context }: TurnOutcome,
): Fragment[] {
  if (!context?.summarize) return []
  const item = { entity: conversation_id, id: newId('job'), project_id }
  summaryWork.wake(tx, item)
  const { history_tokens } = context.summarize
  return [
    summaryWorkCte({ conversation_id, id: item.id, agent_id, agent_version: agent_version as number, history_tokens }),
  ]
}

/**
 * Returns the extensions of a turn by its conversation: prompt, mailbox row and reply.
 * @param complete completes the message of the mailbox when its last turn ends
 */
export function turnSource(
  claimed: ClaimedTurn,
  complete: (outbox: Outbox) => void,
): TurnSource & {
  /** Whether no other turn was open when it ended; a turn enqueued later sends a wake-up. */
  wasLast(): boolean
} {
  let locked: { conversation: ConversationRow; turn: SettlingTurn } | null = null
  return {
    wasLast: () => locked?.turn.alone === true,

    async prepare() {
      if (!claimed.prompt) throw new Error(`turn ${claimed.turn.seq} of ${claimed.conversation.id} was not prepared`)
      return {
        ...claimed.prompt,
        knowledge_config: claimed.session?.knowledge_config,
        shared_state: claimed.session?.state,
      }
    },

    changeState: (services, change) =>
      services.write(async tx => {
        const conversation = await lockConversation(tx, claimed.conversation.id)
        if (!conversation || conversation.session_id === null) return null
        return changeSessionState(tx, conversation.session_id, change)
      }),

    target: ({ kind, id }) =>
      [claimed.session, claimed.conversation].find(row => row?.id === id && kind !== 'agent') ?? null,

    described: (db, { message_id, ...description }) =>
      setMediaDescription(db, claimed.conversation.id, message_id, description),

    description: (db, { message_id, file_id }) =>
      findMediaDescription(db, claimed.conversation.id, message_id, file_id),

    wake: (outbox, at) => wakeConversation(outbox, claimed.conversation, { startAfter: at }),

    started(outbox, { id, trace_id }) {
      if (!claimed.session) return
      outbox.emit(sessionKind, 'generation_started', claimed.session, { extra: { generation_id: id, trace_id } })
    },

    async lock(tx, generation) {
      locked = null
      const { id, project_id } = claimed.conversation
      // Before the conversation's lock, in the order of an actor's deletion.
      if (claimed.turn.actor_id !== null) await actorKind.reference(tx, claimed.turn.actor_id, project_id)
      await lockConversationAhead(tx, id)
      const turn = await lockSettlingTurn(tx, generation)
      if (!turn) return { stop: conversationDeletedFailure(id), isOwned: null }
      locked = { conversation: rowFromJson(turn.conversation) as ConversationRow, turn }
      return { stop: turn.abort, isOwned: turn.owned }
    },

    async settle(tx, generation, outcome) {
      if (!locked) return undefined
      const { conversation, turn } = locked
      const { id: generation_id, trace_id, agent_id } = generation
      const reply_position = turn.seen_position === null ? undefined : turn.seen_position + 1
      const settled = { generation_id, trace_id, agent_id, session: turn.session }
      let result: object | null = null
      let end: SettledTurn
      if (outcome.status === 'completed') {
        const reply: MessageDraft = {
          role: 'assistant',
          content: outcome.content ?? '',
          actor_id: turn.actor_id,
          agent_id,
          generation_id,
          history: outcome.history,
          annotations: outcome.annotations,
          position: reply_position,
          bytes_per_token: outcome.context?.bytes_per_token,
          extraCtes: [
            sql.fragment`ended as (${endedTurns(conversation.id, [turn.seq], 'done')})`,
            ...(isAgentShaped(generation) ? replyHashCtes(generation_id, outcome.texts) : []),
            ...requestSummary(tx, conversation, generation, outcome),
          ],
        }
        const { message } = await appendMessage(tx, conversation, reply, turn)
        const ref = { id: message.document_id, project_id: conversation.project_id }
        tx.emit(messageEvents, 'generated', ref, { data: message, extra: { trace_id } })
        const { agent_version } = generation
        const { names_session } = outcome
        end = { ...settled, status: 'completed', document_id: message.document_id, agent_version, names_session }
        result = {
          status: 'completed',
          content: message.content,
          message: { ...message, model: outcome.model },
          model: outcome.model,
          generation_id,
          trace_id,
          ...(outcome.ignored_params.length > 0 && { ignored_params: outcome.ignored_params }),
        }
      } else {
        await endTurns(tx, conversation.id, [turn.seq], 'failed')
        end = { ...settled, status: 'failed', error: outcome.error, partial: outcome.partial, reply_position }
      }
      if (turn.alone) complete(tx)
      await settleSessionTurn(tx, conversation, end)
      return { result: isAgentShaped(generation) ? null : result }
    },

    async pause(tx, generation, { required_action, text, model }) {
      if (!locked) return undefined
      const { conversation, turn } = locked
      const { id: generation_id, trace_id, agent_id } = generation
      await endTurns(tx, conversation.id, [turn.seq], 'done')
      if (turn.alone) complete(tx)
      await settleSessionTurn(tx, conversation, {
        generation_id,
        trace_id,
        agent_id,
        session: turn.session,
        status: 'requires_action',
        required_action: generation.required_action,
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
      return { result: isAgentShaped(generation) ? null : result }
    },
  }
}
