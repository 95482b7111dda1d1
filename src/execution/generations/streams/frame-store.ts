import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '../../../core/db/sql.ts'
import type { Outbox } from '../../../core/db/writer.ts'

const Frame = z.object({ seq: z.int(), event: z.string(), data: z.string() })
/** One event of a turn's stream as the table has it. */
export type Frame = z.output<typeof Frame>
const frame = sql.type(Frame)
const owning = sql.type(z.object({ owned: z.boolean() }))
const last = sql.type(z.object({ seq: z.int() }))

/** The insert of frames where a condition holds. */
export const frameRows = (generationId: string, frames: Frame[], guard: Fragment): Fragment => sql.fragment`
  insert into stream_frames (generation_id, seq, event, data)
  select ${generationId}, f.seq, f.event, f.data
  from ${sql.unnest(
    frames.map(frame => [frame.seq, frame.event, frame.data]),
    ['int4', 'text', 'text'],
  )} as f (seq, event, data) where ${guard}
  on conflict do nothing`

/** Appends frames of a running attempt. Returns false when the attempt no longer owns the turn. */
export const appendFrames = (db: Queryable, generationId: string, attempt: number, frames: Frame[]): Promise<boolean> =>
  db.oneFirst(owning`
    with owned as (select 1 from generations where id = ${generationId} and attempt = ${attempt} and status = 'in_progress'),
      added as (${frameRows(generationId, frames, sql.fragment`exists (select 1 from owned)`)})
    select exists (select from owned) as owned`)

/** Writes one frame of a turn that the same transaction settled. */
export const addFrame = (tx: Outbox, generationId: string, added: Frame): void =>
  tx.alongside(guard => frameRows(generationId, [added], guard))

/** Number of the last frame of a turn; 0 before the first. */
export const lastFrame = (db: Queryable, id: string): Promise<number> =>
  db.oneFirst(last`select coalesce(max(seq), 0) as seq from stream_frames where generation_id = ${id}`)

/** Frames after a position, in order. */
export const framesAfter = (db: Queryable, id: string, after: number): Promise<readonly Frame[]> =>
  db.any(frame`
    select seq, event, data from stream_frames where generation_id = ${id} and seq > ${after} order by seq limit 1000`)

/** Deletes frames of turns that ended ten minutes ago, up to a number (index stream_frames_created). Returns how many. */
export const deleteOldFrames = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from stream_frames where ctid = any (array(
        select f.ctid from stream_frames f join generations g on g.id = f.generation_id
        where f.created_at < now() - interval '10 minutes' and g.status in ('completed', 'failed')
          and g.completed_at < now() - interval '10 minutes'
        order by f.created_at limit ${limit}))`)
  ).rowCount
