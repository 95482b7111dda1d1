import { z } from 'zod'
import { SPAN_KINDS } from '#core/base/span-targets.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { TargetRow } from './model.ts'

/** Rows of one request, and their compressed bytes: some 2 MiB of JSON. */
const BATCH = { rows: 200, bytes: 256 * 1024 }

/** What the outbox keeps of a project; older spans are dropped. */
export const LIMITS = { hours: 24, bytes: 64 * 1024 * 1024 }

const KnownTarget = z.object({
  project_id: z.string(),
  sample_ratio: z.number(),
  content: z.enum(['none', 'full']),
  kinds: z.array(z.enum(SPAN_KINDS)),
})
type KnownTarget = z.output<typeof KnownTarget>

/** Lists the targets of all projects. */
export const listTargets = (db: Queryable): Promise<readonly KnownTarget[]> =>
  db.any(sql.type(KnownTarget)`select project_id, sample_ratio, content, kinds from telemetry_targets`)

const targetRow = sql.type(TargetRow)
const targetColumns = sql.fragment`t.project_id, t.endpoint, t.sealed_headers, t.header_names, t.sample_ratio, t.content, t.kinds,
  t.author, t.last_exported_at, t.dropped, t.failures, t.last_error, t.batch_rows, t.updated_at`

export const findTarget = (db: Queryable, projectId: string): Promise<TargetRow | null> =>
  db.maybeOne(targetRow`select ${targetColumns} from telemetry_targets t where t.project_id = ${projectId}`)

const lagRow = sql.type(z.object({ lag_seconds: z.number().nullable() }))

/** Returns the age of the oldest span of a project that is not sent (index span_outbox_project); null without one. */
export const findLag = (db: Queryable, projectId: string): Promise<number | null> =>
  db.oneFirst(lagRow`
    select (select greatest(0, extract(epoch from now() - s.created_at))::float8 from span_outbox s
      where s.project_id = ${projectId} order by s.id limit 1) as lag_seconds`)

type TargetValues = Omit<
  TargetRow,
  'last_exported_at' | 'dropped' | 'failures' | 'last_error' | 'batch_rows' | 'updated_at'
>

/** Writes the target of a project. Its counts stay, and its next request is due. */
export const putTarget = (db: Queryable, target: TargetValues): Promise<TargetRow> =>
  db.one(targetRow`
    insert into telemetry_targets as t (project_id, endpoint, sealed_headers, header_names, sample_ratio, content, kinds, author)
    values (${target.project_id}, ${target.endpoint}, ${target.sealed_headers}, ${sql.array(target.header_names, 'text')},
      ${target.sample_ratio}, ${target.content}, ${sql.array(target.kinds, 'text')}, ${jsonb(target.author)})
    on conflict (project_id) do update set endpoint = excluded.endpoint, sealed_headers = excluded.sealed_headers,
      header_names = excluded.header_names, sample_ratio = excluded.sample_ratio, content = excluded.content,
      kinds = excluded.kinds, author = excluded.author, failures = 0, last_error = null, next_attempt_at = now(),
      batch_rows = null, updated_at = now()
    returning ${targetColumns}`)

/** Deletes the target of a project and the spans that it has not been sent. */
export const deleteTarget = (db: Queryable, projectId: string): Promise<unknown> =>
  db.query(voidStatement`
    with target as (delete from telemetry_targets where project_id = ${projectId})
    delete from span_outbox where project_id = ${projectId}`)

/** Lists the projects with a due request: a probe of span_outbox_project for each target. */
export const listDueProjects = (db: Queryable): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.project_id as id from telemetry_targets t
    where t.next_attempt_at <= now() and exists (select from span_outbox s where s.project_id = t.project_id)`)

const OutboxRow = z.object({
  id: z.string(),
  spans: z.string(),
  span_count: z.int(),
  sealed_content: z.string().nullable(),
  trace_id: z.string().nullable(),
})
/** Spans of a unit of work; `spans` as base64. */
export type OutboxRow = z.output<typeof OutboxRow>

const outboxRow = sql.type(OutboxRow)
const outboxColumns = sql.fragment`o.id, encode(o.spans, 'base64') as spans, o.span_count, o.sealed_content, o.trace_id`

/** Version of a target: a request in flight has no outcome for a target that replaces it. */
type ReadTarget = Pick<TargetRow, 'project_id' | 'updated_at'>
const isUnchanged = ({ project_id, updated_at }: ReadTarget): Fragment =>
  sql.fragment`project_id = ${project_id} and updated_at = ${updated_at}`

/** Lists the oldest rows of a project that fit into a request, at least one if a request is due (index span_outbox_project). */
export const listOldestSpans = (
  db: Queryable,
  { project_id, batch_rows }: Pick<TargetRow, 'project_id' | 'batch_rows'>,
): Promise<readonly OutboxRow[]> =>
  db.any(outboxRow`
    select ${outboxColumns}
    from span_outbox o join (
      select s.id, sum(s.bytes) over (order by s.id) - s.bytes as before
      from (
        select s.id, s.bytes from span_outbox s where s.project_id = ${project_id} order by s.id limit ${batch_rows ?? BATCH.rows}
      ) s
    ) b on b.id = o.id
    where b.before < ${BATCH.bytes}
      and exists (select from telemetry_targets t where t.project_id = ${project_id} and t.next_attempt_at <= now())
    order by o.id`)

/** Rows from which `listOtherRows` chooses. */
const MAX_OTHERS = 100

/** Lists three rows but a refused one, the newest first and after each failure others (index span_outbox_project). */
export const listOtherRows = (
  db: Queryable,
  { project_id, failures }: Pick<TargetRow, 'project_id' | 'failures'>,
  refusedId: string,
): Promise<readonly OutboxRow[]> =>
  db.any(outboxRow`
    select ${outboxColumns}
    from span_outbox o join (
      select s.id, row_number() over (order by s.id desc) - 1 as rank, count(*) over () as total
      from (
        select s.id from span_outbox s where s.project_id = ${project_id} and s.id <> ${refusedId}
        order by s.id desc limit ${MAX_OTHERS}
      ) s
    ) b on b.id = o.id
    where b.rank in (select (${failures} + n * b.total / 3) % b.total from generate_series(0, 2) n)
    order by o.id desc`)

/** Deletes rows that the receiver has accepted, and records the success, with the spans of them that it rejected. */
export const recordExported = (
  db: Queryable,
  target: ReadTarget,
  rows: readonly Pick<OutboxRow, 'id'>[],
  rejected: { spans: number; error: string } | null = null,
): Promise<unknown> =>
  db.query(voidStatement`
    with sent as (delete from span_outbox where id = any(${sql.array(
      rows.map(({ id }) => id),
      'text',
    )}))
    update telemetry_targets set last_exported_at = now(), failures = 0, last_error = ${rejected?.error ?? null},
      dropped = dropped + ${rejected?.spans ?? 0}, next_attempt_at = now(),
      batch_rows = nullif(least(batch_rows * 2, ${BATCH.rows}), ${BATCH.rows})
    where ${isUnchanged(target)}`)

/** Records that the receiver has refused the content of a request: the next one has `rows`. */
export const recordRefusedBatch = (db: Queryable, target: ReadTarget, rows: number): Promise<unknown> =>
  db.query(voidStatement`update telemetry_targets set batch_rows = ${rows} where ${isUnchanged(target)}`)

/** Deletes a row that the receiver has refused permanently, and counts its spans. Returns whether it did. */
export const recordDropped = async (
  db: Queryable,
  target: ReadTarget,
  { id, span_count }: OutboxRow,
): Promise<boolean> => {
  const dropped = await db.maybeOneFirst(idStatement`
    with counted as (
      update telemetry_targets set dropped = dropped + ${span_count}
      where ${isUnchanged(target)} and exists (select from span_outbox where id = ${id}) returning project_id
    )
    delete from span_outbox where id = ${id} and exists (select from counted) returning id`)
  return dropped !== null
}

/** Records a failed request, after which the next one is due in `delayMs`. */
export const recordFailedExport = (
  db: Queryable,
  target: ReadTarget,
  { error, delayMs }: { error: string; delayMs: number },
): Promise<unknown> =>
  db.query(voidStatement`
    update telemetry_targets set failures = failures + 1, last_error = ${error},
      next_attempt_at = now() + ${delayMs} * interval '1 ms'
    where ${isUnchanged(target)}`)

const droppedRow = sql.type(z.object({ project_id: z.string(), spans: z.int() }))

/**
 * Deletes rows beyond the limits, the oldest first, and rows without a target. Returns the number of dropped spans by project. A scan
 * of the whole outbox.
 */
export const dropExcess = (db: Queryable): Promise<readonly { project_id: string; spans: number }[]> =>
  db.any(droppedRow`
    with excess as (
      select s.id from (
        select o.id, o.project_id, o.created_at, sum(o.bytes) over (partition by o.project_id order by o.id desc) as kept
        from span_outbox o
      ) s
      where s.kept > ${LIMITS.bytes} or s.created_at < now() - ${LIMITS.hours} * interval '1 hour'
        or not exists (select from telemetry_targets t where t.project_id = s.project_id)
    ), gone as (
      delete from span_outbox o using excess e where o.id = e.id returning o.project_id, o.span_count
    ), counted as (
      select project_id, sum(span_count)::int as spans from gone group by project_id
    )
    update telemetry_targets t set dropped = t.dropped + c.spans
    from counted c where c.project_id = t.project_id returning t.project_id, c.spans`)
