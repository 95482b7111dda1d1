import { z } from 'zod'
import { RecordedFailure } from '#core/base/errors.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { GENERATION_STATUSES } from '#execution/generations/model.ts'
import { isShown } from './end-user.ts'
import { sessionKind } from './kind.ts'
import { SessionMessage } from './model.ts'
import { messageColumns, messageTables } from './store.ts'

/** A message as JSON; its time is in the format of the database. */
const StoredMessage = SessionMessage.extend({ created_at: z.string() })

const SessionFrame = z.object({
  seq: z.int(),
  event: z.string(),
  document_id: z.string().nullable(),
  generation_id: z.string().nullable(),
  approval_id: z.string().nullable(),
  data: z.record(z.string(), z.unknown()).nullable(),
  /** The current message; null if it was deleted. */
  message: StoredMessage.nullable(),
  /** State of the turn. */
  status: z.enum(GENERATION_STATUSES).nullable(),
  error: RecordedFailure.nullable(),
  required_action: z.record(z.string(), z.unknown()).nullable(),
})
/** A stored event with the current state of the records to which it refers. */
export type SessionFrame = z.output<typeof SessionFrame>
const frameRow = sql.type(SessionFrame)

/** Returns the next events of a session after a number, in order, with their records. By the primary key. */
export const sessionFramesAfter = (
  db: Queryable,
  session: { id: string; conversation_id: string },
  after: number,
  limit: number,
): Promise<readonly SessionFrame[]> =>
  db.any(frameRow`
    select f.seq, f.event, f.document_id, f.generation_id, f.approval_id, f.data, t.status, t.error, t.required_action,
      case when f.event in ('message', 'message_updated') then (
        select to_json(r) from (
          select ${messageColumns} from ${messageTables}
          where m.conversation_id = ${session.conversation_id} and m.document_id = f.document_id) r) end as message
    from session_frames f left join generations t on t.id = f.generation_id
    where f.session_id = ${session.id} and f.seq > ${after} order by f.seq limit ${limit}`)

const StreamState = z.object({
  /** Whether a stream of the session was opened before. */
  streamed: z.boolean(),
  /** Number of the last event. */
  head: z.int(),
  /** Number of the oldest stored event; null if there is none. */
  oldest: z.int().nullable(),
  /** ID of the running turn. */
  generation_id: z.string().nullable(),
  /** Position of the last message. */
  position: z.int().nullable(),
})
export type StreamState = z.output<typeof StreamState>
const stateRow = sql.type(StreamState)

/**
 * Returns the state in which a stream begins, at one moment; null if the session was deleted.
 * @param options.shownOnly whether `position` counts only messages that an end user sees
 */
export const findStreamState = (
  db: Queryable,
  sessionId: string,
  { shownOnly }: { shownOnly: boolean },
): Promise<StreamState | null> =>
  db.maybeOne(stateRow`
    select c.streamed, c.frame_seq as head,
      (select min(f.seq) from session_frames f where f.session_id = s.id) as oldest,
      (select q.generation_id from conversation_turns q where q.conversation_id = c.id and q.state = 'running') as generation_id,
      (select max(m.position) from conversation_messages m
        where m.conversation_id = c.id and ${shownOnly ? isShown : sql.fragment`true`}) as position
    from sessions s join conversations c on c.id = s.conversation_id where s.id = ${sessionId}`)

/** Begins the events of a session with its first stream. Waits for transactions that change the conversation. */
export const markStreamed = (db: Queryable, conversationId: string): Promise<unknown> =>
  db.query(voidStatement`update conversations set streamed = true where id = ${conversationId} and not streamed`)

const watchedRow = sql.type(sessionKind.row.extend({ head: z.int() }))

/** Returns sessions with the number of their last event. */
export const listWatchedSessions = (db: Queryable, ids: readonly string[]) =>
  db.any(watchedRow`
    select ${sessionKind.columns}, (select c.frame_seq from conversations c where c.id = t.conversation_id) as head
    from sessions t where t.id = any(${sql.array([...ids], 'text')})`)

/** Deletes up to `limit` old events and returns their number. By session_frames_created. */
export const deleteOldSessionFrames = async (db: Queryable, hours: number, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from session_frames where ctid = any (array(
        select ctid from session_frames where created_at < now() - make_interval(hours => ${hours})
        order by created_at limit ${limit}))`)
  ).rowCount
