import { z } from 'zod'
import { RecordedFailure } from '#core/base/errors.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Outbox } from '#core/writes/writer.ts'

/** A conversation turn that a chat answers with one completion, without a generation. */
export type ChatTurnRef = { conversation_id: string; seq: number }

/** Request of a turn and, once it has ended, its outcome. */
const Payload = z.object({
  authority: z.custom<PrincipalRecord>(),
  /** Overrides the model of the chat. */
  model: z.string().nullable(),
  ended: z
    .union([z.object({ document_id: z.string(), model: z.string() }), z.object({ error: RecordedFailure })])
    .optional(),
})
export type ChatPayload = z.output<typeof Payload>
export type ChatOutcome = NonNullable<ChatPayload['ended']>

const payloadRow = sql.type(z.object({ payload: Payload }))
const seqRow = sql.type(z.object({ seq: z.int() }))

/** Appends a turn of a chat to a mailbox and returns its number. Requires the conversation's lock. */
export const insertChatTurn = (
  db: Queryable,
  turn: { conversation_id: string; chat_id: string; actor_id: string; payload: ChatPayload },
): Promise<number> =>
  db.oneFirst(seqRow`
    insert into conversation_turns (conversation_id, seq, kind, chat_id, actor_id, payload, principal_type, principal_id)
    select ${turn.conversation_id}, coalesce(max(seq), 0) + 1, 'turn', ${turn.chat_id}, ${turn.actor_id},
      ${jsonb(turn.payload)}, ${turn.payload.authority.type}, ${turn.payload.authority.id}
    from conversation_turns where conversation_id = ${turn.conversation_id}
    returning seq`)

/** Returns the payload of a turn; null if its conversation was deleted. By the primary key. */
export const findChatPayload = (db: Queryable, { conversation_id, seq }: ChatTurnRef): Promise<ChatPayload | null> =>
  db.maybeOneFirst(payloadRow`
    select payload from conversation_turns where conversation_id = ${conversation_id} and seq = ${seq}`)

/** Statement that ends a turn with its outcome. Requires the conversation's lock. */
export const endedChatTurn = (
  { conversation_id, seq }: ChatTurnRef,
  state: 'done' | 'failed' | 'cancelled',
  ended: ChatOutcome,
): Fragment => sql.fragment`
  update conversation_turns set state = ${state}, settled_at = now(), payload = payload || ${jsonb({ ended })}
  where conversation_id = ${conversation_id} and seq = ${seq} and state in ('queued', 'running')`

/** Ends a turn with its outcome. Requires the conversation's lock. */
export const endChatTurn = (db: Queryable, ...args: Parameters<typeof endedChatTurn>) =>
  db.query(voidStatement`${endedChatTurn(...args)}`)

/** Channel for ended turns of chats. */
export const CHAT_TURN_CHANNEL = 'muster_chat_turns'

export const chatTurnKey = ({ conversation_id, seq }: ChatTurnRef): string => `${conversation_id} ${seq}`

export const notifyChatSettled = (outbox: Outbox, turn: ChatTurnRef): void =>
  outbox.notify(CHAT_TURN_CHANNEL, chatTurnKey(turn))
