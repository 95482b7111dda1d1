import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'

const Frame = z.object({ seq: z.int(), event: z.string(), data: z.string() })
/** A stored event of a turn's stream. */
export type Frame = z.output<typeof Frame>
const frameRow = sql.type(Frame)
const ownedRow = sql.type(z.object({ owned: z.boolean() }))
const seqRow = sql.type(z.object({ seq: z.int() }))

/** Insert of frames under a condition. */
export const frameRows = (generationId: string, frames: Frame[], guard: Fragment): Fragment => sql.fragment`
  insert into stream_frames (generation_id, seq, event, data)
  select ${generationId}, f.seq, f.event, f.data
  from ${sql.unnest(
    frames.map(frame => [frame.seq, frame.event, frame.data]),
    ['int4', 'text', 'text'],
  )} as f (seq, event, data) where ${guard}
  on conflict do nothing`

/** Appends frames of a running attempt. Returns false if the claim was lost. */
export const appendFrames = (db: Queryable, generationId: string, attempt: number, frames: Frame[]): Promise<boolean> =>
  db.oneFirst(ownedRow`
    with owned as (select 1 from generations where id = ${generationId} and attempt = ${attempt} and status = 'in_progress'),
      added as (${frameRows(generationId, frames, sql.fragment`exists (select 1 from owned)`)})
    select exists (select from owned) as owned`)

/** Adds a frame of a turn that is settled or paused in the same transaction. */
export const addFrame = (tx: Outbox, generationId: string, added: Frame): void =>
  tx.alongside(guard => frameRows(generationId, [added], guard))

/** Returns the number of the last frame of a turn; 0 if there is none. */
export const lastFrame = (db: Queryable, id: string): Promise<number> =>
  db.oneFirst(seqRow`select coalesce(max(seq), 0) as seq from stream_frames where generation_id = ${id}`)

/** Most frames of one read. */
export const FRAMES_PAGE = 1000

/** Returns the next frames after a sequence number, in order. */
export const framesAfter = (db: Queryable, id: string, after: number): Promise<readonly Frame[]> =>
  db.any(frameRow`
    select seq, event, data from stream_frames where generation_id = ${id} and seq > ${after} order by seq limit ${FRAMES_PAGE}`)

/** Returns the number of the last pause of a turn, after which the text of its current part begins; 0 without one. */
export const lastPauseFrame = (db: Queryable, id: string): Promise<number> =>
  db.oneFirst(seqRow`
    select coalesce(max(seq), 0) as seq from stream_frames where generation_id = ${id} and event = 'requires_action'`)

const lastPartRow = sql.type(z.object({ after: z.int(), steps: z.int() }))

/**
 * Returns the place of the last part of a turn, which began with the turn or with its last resume: the number of the frame
 * before it, and the number of steps before it, including the step that the turn had paused in.
 */
export const findLastPart = (db: Queryable, id: string): Promise<{ after: number; steps: number }> =>
  db.one(lastPartRow`
    with pause as (
      select max(seq) as seq from stream_frames where generation_id = ${id} and event = 'requires_action'
        and seq < (select max(seq) from stream_frames where generation_id = ${id}))
    select coalesce(pause.seq, 0) as after, case when pause.seq is null then 0 else 1 + (
      select count(*)::int from stream_frames
      where generation_id = ${id} and event = 'step' and seq < pause.seq) end as steps
    from pause`)

const VoidText = z.object({ after: z.int(), before: z.int() })
/** Frames between two others, whose text is void because the worker of their step was lost. */
export type VoidText = z.output<typeof VoidText>
const voidTextRow = sql.type(VoidText)

/** Returns the void texts of a turn so far. */
export const listVoidTexts = (db: Queryable, id: string): Promise<readonly VoidText[]> =>
  db.any(voidTextRow`
    select r.seq as before, coalesce((
      select max(b.seq) from stream_frames b
      where b.generation_id = r.generation_id and b.seq < r.seq
        and b.event in ('step', 'step_settled', 'step_restarted', 'requires_action')), 0) as after
    from stream_frames r where r.generation_id = ${id} and r.event = 'step_restarted'`)

/**
 * Deletes up to `limit` frames of turns that ended ten minutes ago and returns their number. By stream_frames_created.
 */
export const deleteOldFrames = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from stream_frames where ctid = any (array(
        select f.ctid from stream_frames f join generations g on g.id = f.generation_id
        where f.created_at < now() - interval '10 minutes' and g.status in ('completed', 'failed')
          and g.completed_at < now() - interval '10 minutes'
        order by f.created_at limit ${limit}))`)
  ).rowCount
