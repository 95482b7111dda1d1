import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { Outbox } from '../../core/db/writer.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'

/** A turn of a conversation that a chat answers: one completion, without a generation. */
export type ChatTurnPayload = { conversation_id: string; seq: number }

/** What it is asked with, and what came of it once it has ended. */
const Payload = z.object({
  authority: z.custom<PrincipalRecord>(),
  /** In place of the chat's. */
  model: z.string().nullable(),
  ended: z
    .union([z.object({ document_id: z.string(), model: z.string() }), z.object({ error: RecordedFailure })])
    .optional(),
})
export type ChatPayload = z.output<typeof Payload>
export type ChatOutcome = NonNullable<ChatPayload['ended']>

const payload = sql.type(z.object({ payload: Payload }))
const place = sql.type(z.object({ seq: z.int() }))

/** Adds a turn of a chat at the end of a mailbox, under the conversation's row lock; its place. */
export const insertChatTurn = (
  db: Queryable,
  turn: { conversation_id: string; chat_id: string; actor_id: string; payload: ChatPayload },
): Promise<number> =>
  db.oneFirst(place`
    insert into conversation_turns (conversation_id, seq, kind, chat_id, actor_id, payload, principal_type, principal_id)
    select ${turn.conversation_id}, coalesce(max(seq), 0) + 1, 'turn', ${turn.chat_id}, ${turn.actor_id},
      ${jsonb(turn.payload)}, ${turn.payload.authority.type}, ${turn.payload.authority.id}
    from conversation_turns where conversation_id = ${turn.conversation_id}
    returning seq`)

/** What a turn was asked with and what came of it, by the primary key; null when its conversation is gone. */
export const chatPayload = (db: Queryable, { conversation_id, seq }: ChatTurnPayload): Promise<ChatPayload | null> =>
  db.maybeOneFirst(payload`
    select payload from conversation_turns where conversation_id = ${conversation_id} and seq = ${seq}`)

/** Notes what came of a turn. Under the conversation's row lock. */
export const recordChatOutcome = (db: Queryable, { conversation_id, seq }: ChatTurnPayload, ended: ChatOutcome) =>
  db.query(voidStatement`
    update conversation_turns set payload = payload || ${jsonb({ ended })}
    where conversation_id = ${conversation_id} and seq = ${seq}`)

/** Announces turns of chats that have ended. */
export const CHAT_TURN_CHANNEL = 'muster_chat_turns'

export const chatTurnName = ({ conversation_id, seq }: ChatTurnPayload): string => `${conversation_id} ${seq}`

export const notifyChatSettled = (outgoing: Outbox, turn: ChatTurnPayload): void =>
  outgoing.notify(CHAT_TURN_CHANNEL, chatTurnName(turn))
