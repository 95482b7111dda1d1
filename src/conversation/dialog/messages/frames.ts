import { type Fragment, sql } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'
import type { ConversationRow } from './model.ts'

/** Notifies web processes of frames of a session: the session id, followed by the event if it is not stored. */
export const SESSION_CHANNEL = 'muster_sessions'

/** An event of a session's stream; references are resolved when it is sent. */
export type FrameDraft = {
  event:
    | 'message'
    | 'message_updated'
    | 'message_deleted'
    | 'turn_started'
    | 'requires_action'
    | 'turn_completed'
    | 'turn_failed'
    | 'control'
    | 'session'
  document_id?: string
  generation_id?: string
  /** Of `control` the reason, of `message_deleted` the origin of the message. */
  data?: object
}

const drafts = new WeakMap<Outbox, object[]>()

/** Cte that adds the start of a turn `starting` that was `taken` to the stream of the session of `conversation`, if it has one. */
export const startFrameCte: Fragment = sql.fragment`
  start_frame as (
    insert into session_frames (session_id, event, generation_id)
    select c.session_id, ${'turn_started' satisfies FrameDraft['event']}, n.generation_id from starting n, taken, conversation c
    where c.session_id is not null and c.streamed)`

/**
 * Adds an event to the stream of a conversation's session, in the statement that writes the outbox. Does nothing without
 * a session, or if no stream of it was ever opened. Requires the conversation's lock, except for the last statement of
 * a transaction.
 */
export function addSessionFrame(
  outbox: Outbox,
  { session_id, streamed = true }: Pick<ConversationRow, 'session_id'> & { streamed?: boolean },
  draft: FrameDraft,
): void {
  if (session_id === null || !streamed) return
  let rows = drafts.get(outbox)
  if (!rows) {
    const added: object[] = []
    rows = added
    drafts.set(outbox, added)
    // Rows added later are part of the same insert, which numbers them in their order.
    outbox.alongside(
      guard => sql.fragment`
        insert into session_frames (session_id, event, document_id, generation_id, data)
        select f.session_id, f.event, f.document_id, f.generation_id, f.data
        from json_to_recordset(${JSON.stringify(added)}::json)
          as f (n integer, session_id text, event text, document_id text, generation_id text, data jsonb)
        where ${guard} order by f.n`,
    )
  }
  rows.push({ n: rows.length, session_id, ...draft })
  outbox.notify(SESSION_CHANNEL, session_id)
}
