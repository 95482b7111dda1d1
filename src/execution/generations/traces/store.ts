import { z } from 'zod'
import { type FileRow, fileKind } from '#content/files/model.ts'
import type { Location } from '#content/storage/backend.ts'
import { jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type GenerationRow, JournalStepRow, Trace, type TraceRow } from '../model.ts'

/** Converts the times of a step from jsonb to wire format. */
export const wireStep = <Step extends JournalStepRow>(step: Step): Step => ({
  ...step,
  started_at: new Date(step.started_at).toISOString(),
  answered_at: step.answered_at ? new Date(step.answered_at).toISOString() : null,
  completed_at: new Date(step.completed_at).toISOString(),
})

/** The file of a trace `tr`. By the primary key. */
const traceFile = sql.fragment`(
  select to_jsonb(f) from (select ${fileKind.columns} from files t where t.id = tr.file_id) f)`

/** A file as jsonb, with the location of its bytes. */
const file = z.custom<FileRow & Location>().nullable()

const stepsAndFileRow = sql.type(z.object({ steps: z.array(JournalStepRow), file }))

/** The settled steps of a generation `g`, without the provider ids of another project that shares the agent. */
export const visibleSteps = sql.fragment`(
  select jsonb_agg(to_jsonb(s) - array['generation_id', 'vendor_parts']
    || jsonb_build_object('vendor_calls', nullif(jsonb_path_query_array(s.vendor_parts,
      '$[*] ? (@.type == "vendor_call" || @.type == "vendor_result")'), '[]'))
    || case when g.publisher_project_id is null then '{}' else '{"ai_provider_id": null}' end::jsonb order by s.n)
  from generation_steps s where s.generation_id = g.id)`

/** Returns the journalled steps of a generation and the file of its trace, from one snapshot. */
export async function findStepsAndFile(db: Queryable, generation: Pick<GenerationRow, 'id' | 'trace_id'>) {
  const found = await db.one(stepsAndFileRow`
    select coalesce((select ${visibleSteps} from generations g where g.id = ${generation.id}), '[]') as steps,
      (select ${traceFile} from traces tr where tr.id = ${generation.trace_id}) as file`)
  return { steps: found.steps.map(wireStep), file: found.file }
}

const stepRequestRow = sql.type(z.object({ n: z.int(), body: z.string().nullable() }))

/** Returns the last stored request of the steps of a generation up to a step, or null. By the primary key. */
export const findStepRequest = (
  db: Queryable,
  generationId: string,
  step: number,
): Promise<{ n: number; body: string | null } | null> =>
  db.maybeOne(stepRequestRow`
    select n, body from step_requests where generation_id = ${generationId} and n <= ${step}::int order by n desc limit 1`)

/** A trace with its journalled steps and its file. */
const TraceJournal = z.object({
  id: z.string(),
  project_id: z.string(),
  redacted: z.boolean(),
  file,
  /** Settled generations with journalled steps. */
  settled: z.array(z.object({ id: z.string(), redacted: z.boolean(), steps: z.array(JournalStepRow) })),
  /** Ids of all generations with stored content, oldest first. */
  kept: z.array(z.string()),
})
export type TraceJournal = z.output<typeof TraceJournal>
const traceJournalRow = sql.type(TraceJournal)

/** Waits for transactions that settle turns of the traces, so that their steps are part of the flush. */
export const lockSettlingTurns = (db: Queryable, traceIds: readonly string[]) =>
  db.query(voidStatement`
    select from traces where id = any(${sql.array([...traceIds], 'text')}) order by id for share`)

/**
 * Returns the journals of traces with their files, from one snapshot. By generations_trace and generation_steps_pkey.
 */
export async function listTraceJournals(db: Queryable, traceIds: readonly string[]): Promise<TraceJournal[]> {
  const rows = await db.any(traceJournalRow`
    select tr.id, tr.project_id, tr.content_redacted_at is not null as redacted, ${traceFile} as file,
      coalesce((
        select jsonb_agg(jsonb_build_object('id', g.id, 'redacted', g.content_redacted_at is not null, 'steps', j.steps))
        from generations g cross join lateral (select ${visibleSteps} as steps) j
        where g.trace_id = tr.id and g.status in ('completed', 'failed') and j.steps is not null), '[]') as settled,
      array(select g.id from generations g where g.trace_id = tr.id and g.content_redacted_at is null
        order by g.created_at, g.id) as kept
    from traces tr where tr.id = any(${sql.array([...traceIds], 'text')})`)
  return rows.map(row => ({
    ...row,
    settled: row.settled.map(({ steps, ...generation }) => ({ ...generation, steps: steps.map(wireStep) })),
  }))
}

const locationRow = sql.type(z.object({ id: z.string(), location: z.string().nullable() }))

/**
 * Locks traces and returns the file locations of those that are not redacted; null without a file. Two statements,
 * because the locking one would return files as of before it waited.
 */
export async function lockTraceFiles(
  db: Queryable,
  traceIds: readonly string[],
): Promise<ReadonlyMap<string, string | null>> {
  const ids = sql.array([...traceIds], 'text')
  await db.query(voidStatement`select from traces where id = any(${ids}) order by id for update`)
  const rows = await db.any(locationRow`
    select tr.id, f.location from traces tr left join files f on f.id = tr.file_id
    where tr.id = any(${ids}) and tr.content_redacted_at is null`)
  return new Map(rows.map(({ id, location }) => [id, location]))
}

/** Deletes the journalled steps of generations and returns their number. */
export async function deleteJournal(db: Queryable, generationIds: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from generation_steps where generation_id = any(${sql.array([...generationIds], 'text')})`)
  return rowCount
}

/** Inserts or replaces the files of traces and links them to their traces. */
export const setTraceFiles = (
  db: Queryable,
  files: readonly (Location &
    Pick<FileRow, 'id' | 'project_id' | 'filename'> & {
      trace_id: string
      path: string
      size: number
      sha256: Buffer
    })[],
) =>
  db.query(voidStatement`
    with written as (
      insert into files as t (id, project_id, path, filename, content_type, size, sha256, storage, location)
      select w.id, w.project_id, w.path, w.filename, 'application/json', w.size, decode(w.sha256, 'hex'), w.storage, w.location
      from ${sql.unnest(
        files.map(file => [
          file.id,
          file.project_id,
          file.path,
          file.filename,
          file.size,
          file.sha256.toString('hex'),
          file.storage,
          file.location,
        ]),
        ['text', 'text', 'text', 'text', 'int8', 'text', 'text', 'text'],
      )} as w (id, project_id, path, filename, size, sha256, storage, location)
      on conflict (id) do update set size = excluded.size, sha256 = excluded.sha256, storage = excluded.storage,
        location = excluded.location, updated_at = now()
    )
    update traces tr set file_id = w.file_id, updated_at = now()
    from ${sql.unnest(
      files.map(file => [file.trace_id, file.id]),
      ['text', 'text'],
    )} as w (trace_id, file_id)
    where tr.id = w.trace_id`)

const storedBytesRow = sql.type(z.object({ storage: z.custom<Location['storage']>(), location: z.string() }))

/** Deletes the files of traces, which the caller has locked, and returns the locations of their bytes. */
export const detachTraceFiles = (db: Queryable, traceIds: readonly string[]): Promise<readonly Location[]> =>
  db.any(storedBytesRow`
    with held as (
      select id, file_id from traces where id = any(${sql.array([...traceIds], 'text')}) and file_id is not null
    ), named as (
      update traces t set file_id = null from held where t.id = held.id
    )
    delete from files f using held where f.id = held.file_id returning f.storage, f.location`)

export const deleteTraces = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`delete from traces where id = any(${sql.array([...ids], 'text')})`)

const traceRefRow = sql.type(z.object({ trace_id: z.string(), project_id: z.string() }))

/**
 * Returns traces with settled steps older than `idleSeconds` in the journal and without a message of `queue`: orphans
 * of a lost worker. Reads the journal, which contains little else.
 */
export const listUnflushedTraces = (db: Queryable, queue: string, idleSeconds: number, limit: number) =>
  db.any(traceRefRow`
    with kept as materialized (
      select singleton_key as trace_id from pgboss.job_common where name = ${queue} and state <= 'active'
    )
    select distinct g.trace_id, g.project_id
    from generation_steps s join generations g on g.id = s.generation_id join traces tr on tr.id = g.trace_id
    where g.status in ('completed', 'failed') and g.completed_at < now() - make_interval(secs => ${idleSeconds})
      and (tr.content_redacted_at is null or g.content_redacted_at is not null)
      and not exists (select from kept k where k.trace_id = g.trace_id)
    limit ${limit}`)

const traceRow = sql.type(Trace)

/** Appends a note to a trace; notes are retained when content is erased. */
export const addTraceNote = (
  db: Queryable,
  id: string,
  note: { kind: string; generation_id: string; stop_reason: string; created_at: string },
) => db.query(voidStatement`update traces set notes = notes || ${jsonb([note])}, updated_at = now() where id = ${id}`)

export const findTrace = (db: Queryable, id: string): Promise<TraceRow | null> =>
  db.maybeOne(traceRow`select * from traces where id = ${id}`)

/** Returns the tree of a trace, parents before children; `limit` + 1 rows if it is larger. By traces_root. */
export const findTree = (db: Queryable, rootId: string, limit: number): Promise<readonly TraceRow[]> =>
  db.any(traceRow`
    select * from traces where id = ${rootId} or root_trace_id = ${rootId}
    order by (id = ${rootId}) desc, created_at, id limit ${limit + 1}`)
