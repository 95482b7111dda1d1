import { z } from 'zod'
import { type FileRow, fileKind } from '../../../content/files/model.ts'
import type { Location } from '../../../content/storage/backend.ts'
import { jsonb, type Queryable, sql, voidStatement } from '../../../core/db/sql.ts'
import { type GenerationRow, JournalStepRow, Trace, type TraceRow } from '../model.ts'

/** A step out of jsonb: its times in wire form. */
export const wireStep = <Step extends JournalStepRow>(step: Step): Step => ({
  ...step,
  started_at: new Date(step.started_at).toISOString(),
  completed_at: new Date(step.completed_at).toISOString(),
})

/** The file of a trace `tr`, by the primary key. */
const traceFile = sql.fragment`(
  select to_jsonb(f) from (select ${fileKind.columns} from files t where t.id = tr.file_id) f)`

/** A file as jsonb, with where its bytes are. */
const file = z.custom<FileRow & Location>().nullable()

const journal = sql.type(z.object({ steps: z.array(JournalStepRow), file }))

/** The settled steps of a generation `g` as they are shown: without what another project's provider is, which shares the agent. */
const shownSteps = sql.fragment`(
  select jsonb_agg(to_jsonb(s) - 'generation_id'
    || case when g.publisher_project_id is null then '{}' else '{"ai_provider_id": null}' end::jsonb order by s.n)
  from generation_steps s where s.generation_id = g.id)`

/** The steps of a generation that the journal has, and the file that has those of its trace, as of one moment. */
export async function findJournal(db: Queryable, generation: Pick<GenerationRow, 'id' | 'trace_id'>) {
  const found = await db.one(journal`
    select coalesce((select ${shownSteps} from generations g where g.id = ${generation.id}), '[]') as steps,
      (select ${traceFile} from traces tr where tr.id = ${generation.trace_id}) as file`)
  return { steps: found.steps.map(wireStep), file: found.file }
}

/** What is to go into the file of a trace. */
const Journals = z.object({
  id: z.string(),
  project_id: z.string(),
  redacted: z.boolean(),
  file,
  /** Generations that are at their end, with the steps that the journal has of them; those without any are absent. */
  settled: z.array(z.object({ id: z.string(), redacted: z.boolean(), steps: z.array(JournalStepRow) })),
  /** Ids of all generations whose content is kept, in their order. */
  kept: z.array(z.string()),
})
export type Journals = z.output<typeof Journals>
const journals = sql.type(Journals)

/** Waits for turns of traces that are being ended: a message that they would have sent is the one at hand. */
export const lockSettlingTurns = (db: Queryable, traceIds: readonly string[]) =>
  db.query(voidStatement`
    select from traces where id = any(${sql.array([...traceIds], 'text')}) order by id for share`)

/** The journals of traces with their files, as of one moment. Indexes generations_trace, generation_steps_pkey. */
export async function readJournals(db: Queryable, traceIds: readonly string[]): Promise<Journals[]> {
  const rows = await db.any(journals`
    select tr.id, tr.project_id, tr.content_redacted_at is not null as redacted, ${traceFile} as file,
      coalesce((
        select jsonb_agg(jsonb_build_object('id', g.id, 'redacted', g.content_redacted_at is not null, 'steps', j.steps))
        from generations g cross join lateral (select ${shownSteps} as steps) j
        where g.trace_id = tr.id and g.status in ('completed', 'failed') and j.steps is not null), '[]') as settled,
      array(select g.id from generations g where g.trace_id = tr.id and g.content_redacted_at is null
        order by g.created_at, g.id) as kept
    from traces tr where tr.id = any(${sql.array([...traceIds], 'text')})`)
  return rows.map(row => ({
    ...row,
    settled: row.settled.map(({ steps, ...generation }) => ({ ...generation, steps: steps.map(wireStep) })),
  }))
}

const location = sql.type(z.object({ id: z.string(), location: z.string().nullable() }))

/**
 * Where the files of traces are that keep their content, under the locks of the traces; null without a file. The statement
 * that locks would show files as they were before it waited.
 */
export async function lockTraceFiles(
  db: Queryable,
  traceIds: readonly string[],
): Promise<ReadonlyMap<string, string | null>> {
  const ids = sql.array([...traceIds], 'text')
  await db.query(voidStatement`select from traces where id = any(${ids}) order by id for update`)
  const rows = await db.any(location`
    select tr.id, f.location from traces tr left join files f on f.id = tr.file_id
    where tr.id = any(${ids}) and tr.content_redacted_at is null`)
  return new Map(rows.map(({ id, location }) => [id, location]))
}

/** Drops the steps of generations from the journal; returns how many there were. */
export async function dropJournal(db: Queryable, generationIds: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from generation_steps where generation_id = any(${sql.array([...generationIds], 'text')})`)
  return rowCount
}

/** Writes the files of traces, new ones and those that replace their bytes, and names them on their traces. */
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

const located = sql.type(z.object({ storage: z.custom<Location['storage']>(), location: z.string() }))

/** Takes the files of traces away from them, whose locks the caller holds, and returns where their bytes are. */
export const detachTraceFiles = (db: Queryable, traceIds: readonly string[]): Promise<readonly Location[]> =>
  db.any(located`
    with held as (
      select id, file_id from traces where id = any(${sql.array([...traceIds], 'text')}) and file_id is not null
    ), named as (
      update traces t set file_id = null from held where t.id = held.id
    )
    delete from files f using held where f.id = held.file_id returning f.storage, f.location`)

export const deleteTraces = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`delete from traces where id = any(${sql.array([...ids], 'text')})`)

const unwritten = sql.type(z.object({ trace_id: z.string(), project_id: z.string() }))

/**
 * Traces whose settled steps should have left the journal by now and for which no message of `queue` waits or is handled:
 * those of a worker that was lost. Reads the journal, which has little else.
 */
export const listUnflushedTraces = (db: Queryable, queue: string, idleSeconds: number, limit: number) =>
  db.any(unwritten`
    with kept as materialized (
      select singleton_key as trace_id from pgboss.job_common where name = ${queue} and state <= 'active'
    )
    select distinct g.trace_id, g.project_id
    from generation_steps s join generations g on g.id = s.generation_id join traces tr on tr.id = g.trace_id
    where g.status in ('completed', 'failed') and g.completed_at < now() - make_interval(secs => ${idleSeconds})
      and (tr.content_redacted_at is null or g.content_redacted_at is not null)
      and not exists (select from kept k where k.trace_id = g.trace_id)
    limit ${limit}`)

const trace = sql.type(Trace)

/** Adds a fact to the notes of a trace, which outlive its content. */
export const addTraceNote = (
  db: Queryable,
  id: string,
  note: { kind: string; generation_id: string; stop_reason: string; created_at: string },
) => db.query(voidStatement`update traces set notes = notes || ${jsonb([note])}, updated_at = now() where id = ${id}`)

export const findTrace = (db: Queryable, id: string): Promise<TraceRow | null> =>
  db.maybeOne(trace`select * from traces where id = ${id}`)

/** The whole tree of a trace, parents before children; one more than `limit` when it is larger. Index traces_root. */
export const findTree = (db: Queryable, rootId: string, limit: number): Promise<readonly TraceRow[]> =>
  db.any(trace`
    select * from traces where id = ${rootId} or root_trace_id = ${rootId}
    order by (id = ${rootId}) desc, created_at, id limit ${limit + 1}`)
