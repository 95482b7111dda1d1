import { actorKind } from '#conversation/actors/model.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { TurnOutcome, TurnSource } from '#execution/generations/loop/turn-owner.ts'
import type { GenerationRow } from '#execution/generations/model.ts'
import { addSessionFrame } from '../messages/frames.ts'
import { type ConversationRow, messageEvents } from '../messages/model.ts'
import { appendMessage, findMediaDescription, lockConversation, setMediaDescription } from '../messages/store.ts'
import { summaryWorkCte } from '../summaries/store.ts'
import { summaryWork } from '../summaries/summarize.ts'
import { type SessionFacts, sessionHooks } from './hooks.ts'
import { conversationDeletedFailure, wakeConversation } from './mailbox.ts'
import type { Prompt } from './prompt.ts'
import { replyHashCtes } from './reply-hash.ts'
import { endedTurns, endTurns, findOpenTurn, type OpenTurn, type TurnRow } from './store.ts'

/** A turn that was taken from the mailbox to be executed. */
export type ClaimedTurn = {
  conversation: ConversationRow
  turn: TurnRow
  /** Null if the conversation has none, or if an earlier attempt has stored the prompt. */
  session: SessionFacts | null
  /** Null if an earlier attempt has stored it. */
  prompt: Prompt | { refuse: RecordedFailure } | null
  /** Whether no other turn was open when it ended; a turn enqueued later sends a wake-up. */
  alone?: boolean
}

/** Whether the turn was requested by a client that receives the result of the agent, with all its steps. */
const isAgentShaped = ({ shape }: { shape: 'agent' | 'conversation' }): boolean => shape === 'agent'

export const sessionOf = async (tx: Tx, { session_id }: ConversationRow): Promise<SessionFacts | null> =>
  (session_id !== null && (await sessionHooks.only()?.load(tx, session_id))) || null

/** Returns the refusal of a turn whose session is closed or expired, or null. */
export function sessionRefusal({ session_id }: ConversationRow, session: SessionFacts | null): RecordedFailure | null {
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
export function turnSource(claimed: ClaimedTurn, complete: (outbox: Outbox) => void): TurnSource {
  let locked: { conversation: ConversationRow; turn: OpenTurn } | null = null
  return {
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
        return sessionHooks.only()?.changeState(tx, conversation.session_id, change)
      }),

    target: ({ kind, id }) =>
      [claimed.session?.row, claimed.conversation].find(row => row?.id === id && kind !== 'agent') ?? null,

    described: (db, { message_id, ...description }) =>
      setMediaDescription(db, claimed.conversation.id, message_id, description),

    description: (db, { message_id, file_id }) =>
      findMediaDescription(db, claimed.conversation.id, message_id, file_id),

    wake: (outbox, at) => wakeConversation(outbox, claimed.conversation, { startAfter: at }),

    started(outbox, { id, trace_id }) {
      if (claimed.session) sessionHooks.only()?.started(outbox, claimed.session, { generation_id: id, trace_id })
    },

    async lock(tx, generation) {
      locked = null
      // Before the conversation's lock, in the order of an actor's deletion.
      if (claimed.turn.actor_id !== null)
        await actorKind.reference(tx, claimed.turn.actor_id, claimed.conversation.project_id)
      const conversation = await lockConversation(tx, claimed.conversation.id)
      if (!conversation) return conversationDeletedFailure(claimed.conversation.id)
      const turn = await findOpenTurn(tx, generation.id)
      if (!turn) return conversationDeletedFailure(claimed.conversation.id)
      locked = { conversation, turn }
      claimed.alone = turn.alone
      return turn.abort
    },

    async settle(tx, generation, outcome) {
      if (!locked) return undefined
      const { conversation, turn } = locked
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
          history: outcome.history,
          annotations: outcome.annotations,
          position: reply_position,
          bytes_per_token: outcome.context?.bytes_per_token,
          extraCtes: [
            sql.fragment`ended as (${endedTurns(conversation.id, [turn.seq], 'done')})`,
            ...(isAgentShaped(generation) ? replyHashCtes(generation_id, outcome.texts) : []),
            ...requestSummary(tx, conversation, generation, outcome),
          ],
        })
        const ref = { id: message.document_id, project_id: conversation.project_id }
        tx.emit(messageEvents, 'generated', ref, { data: message, extra: { trace_id } })
        addSessionFrame(tx, conversation, {
          event: 'turn_completed',
          generation_id,
          document_id: message.document_id,
        })
        result = {
          status: 'completed',
          content: message.content,
          message: { ...message, model: outcome.model },
          model: outcome.model,
          generation_id,
          trace_id,
          ...(outcome.ignored_params.length > 0 && { ignored_params: outcome.ignored_params }),
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
          agent_version: generation.agent_version,
          names_session: outcome.names_session,
          partial: outcome.status === 'failed' ? outcome.partial : null,
          reply_position,
          session: turn.session,
        })
      // After the partial text of an interrupted turn.
      if (outcome.status === 'failed') addSessionFrame(tx, conversation, { event: 'turn_failed', generation_id })
      return { result: isAgentShaped(generation) ? null : result }
    },

    async pause(tx, generation, { required_action, text, model }) {
      if (!locked) return undefined
      const { conversation, turn } = locked
      const { id: generation_id, trace_id, agent_id } = generation
      await endTurns(tx, conversation.id, [turn.seq], 'done')
      addSessionFrame(tx, conversation, { event: 'requires_action', generation_id })
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
      return { result: isAgentShaped(generation) ? null : result }
    },
  }
}
