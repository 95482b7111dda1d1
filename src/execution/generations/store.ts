import { type FileRow, fileColumns } from '../../content/files/model.ts'
import type { Location } from '../../content/storage/storage.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { type Fragment, jsonb, type Queryable, sql, statement } from '../../core/db/sql.ts'
import { type OneStatement, type Outbox, outboxParts } from '../../core/db/write.ts'
import type { SendPart } from '../../core/jobs/queue.ts'
import type { AgentRow } from '../agents/model.ts'
import { aiProviderKind, type ProviderRow } from '../providers/model.ts'
import type { GenerationRow, StepRow, TraceRow } from './model.ts'

const json = (value: unknown): Fragment => jsonb(value)

/** What a new turn is made of. */
export type NewTurn = Pick<
  GenerationRow,
  | 'id'
  | 'project_id'
  | 'agent_id'
  | 'trace_id'
  | 'conversation_id'
  | 'session_id'
  | 'actor_id'
  | 'initiator_generation_id'
  | 'started_by_principal_type'
  | 'started_by_principal_id'
  | 'action_id'
  | 'source'
  | 'metadata'
  | 'authority'
  | 'permission'
  | 'streamed'
  | 'shape'
  | 'deadline_at'
  | 'created_at'
> & { newTrace: boolean; parent_trace_id: string | null; root_trace_id: string | null; sealedWork: string }

/** The project of a new turn as its insert found it; a paused one means that nothing was written. */
export type ProjectFound = { project_id: string | null; paused_at: string | null; pause_reason: string | null }

/**
 * Writes a pending generation, its trace when it is a new one, and its sealed bag, while it holds the project against a
 * pause. The ctes `project` and `runnable` tell what was found; nothing is written in a paused project.
 */
export function newTurnParts(turn: NewTurn): OneStatement {
  const ctes = [
    sql.fragment`project as (select id, paused_at, pause_reason, trace_content_mode from projects where id = ${turn.project_id} for share)`,
    // The stricter of what the project and the agent say.
    sql.fragment`runnable as (
      select case when project.trace_content_mode = 'none' then 'none' else coalesce(a.trace_content_mode, 'full') end as mode
      from project left join agents a on a.id = ${turn.agent_id} where paused_at is null)`,
    sql.fragment`new_trace as (
      insert into traces (id, project_id, agent_id, parent_trace_id, root_trace_id, created_at, updated_at)
      select ${turn.trace_id}, ${turn.project_id}, ${turn.agent_id}, ${turn.parent_trace_id}, ${turn.root_trace_id}, ${turn.created_at}::timestamptz, ${turn.created_at}::timestamptz
      from runnable where ${turn.newTrace})`,
    sql.fragment`new_generation as (
      insert into generations (id, project_id, agent_id, trace_id, conversation_id, session_id, actor_id, initiator_generation_id, started_by_principal_type,
        started_by_principal_id, action_id, source, metadata, authority, permission, streamed, shape, content_mode, deadline_at, created_at, updated_at)
      select ${turn.id}, ${turn.project_id}, ${turn.agent_id}, ${turn.trace_id}, ${turn.conversation_id}, ${turn.session_id}, ${turn.actor_id},
        ${turn.initiator_generation_id}, ${turn.started_by_principal_type}, ${turn.started_by_principal_id}, ${turn.action_id}, ${turn.source},
        case when mode = 'full' then ${json(turn.metadata)} end, ${json(turn.authority)}, ${json(turn.permission)}, ${turn.streamed}, ${turn.shape}, mode,
        ${turn.deadline_at}::timestamptz, ${turn.created_at}::timestamptz, ${turn.created_at}::timestamptz
      from runnable)`,
    sql.fragment`kept as (insert into generation_work (generation_id, sealed) select ${turn.id}, ${turn.sealedWork} from runnable where mode = 'full')`,
    sql.fragment`hidden as (insert into generation_work_unlogged (generation_id, sealed) select ${turn.id}, ${turn.sealedWork} from runnable where mode = 'none')`,
  ]
  return {
    ctes,
    guard: sql.fragment`exists (select 1 from runnable)`,
    columns: sql.fragment`(select id from project) as project_id, (select paused_at from project) as paused_at, (select pause_reason from project) as pause_reason`,
  }
}

/** The same inside a transaction, with the agent's provider. */
export async function insertTurn(
  db: Queryable,
  turn: NewTurn,
): Promise<ProjectFound & { provider: ProviderRow | null }> {
  const { ctes, columns } = newTurnParts(turn)
  return (await db.one(sql.unsafe`
    with ${sql.join(ctes, sql.fragment`, `)} select ${columns},
      (select to_jsonb(pr) from agents a cross join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = a.ai_provider_id) pr
        where a.id = ${turn.agent_id}) as provider`)) as ProjectFound & { provider: ProviderRow | null }
}

/** Files of a project by their ids, in any order; by the primary key. */
export const findFiles = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly FileRow[]> =>
  db.any(sql.unsafe`
    select ${fileColumns} from files t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`) as Promise<readonly FileRow[]>

/** An agent with its provider, for running it: one round trip. */
export async function findRunnableAgent(
  db: Queryable,
  id: string,
): Promise<(AgentRow & { provider: ProviderRow | null }) | null> {
  return (await db.maybeOne(sql.unsafe`
    select a.*, to_jsonb(pr) as provider from agents a
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = a.ai_provider_id) pr on true
    where a.id = ${id}`)) as (AgentRow & { provider: ProviderRow | null }) | null
}

const workTable = (mode: 'full' | 'none') =>
  sql.identifier([mode === 'none' ? 'generation_work_unlogged' : 'generation_work'])

export type LoadedTurn = {
  generation: GenerationRow
  agent: AgentRow
  provider: ProviderRow | null
  paused: boolean
  sealedWork: string | null
  steps: StepRow[]
  lastFrame: number
}

/** Everything an executor needs to start or resume a turn, in one round trip; null when the generation is gone. */
export async function loadTurn(db: Queryable, id: string): Promise<LoadedTurn | null> {
  const row = (await db.maybeOne(sql.unsafe`
    select g.*,
      to_jsonb(a) as loaded_agent,
      to_jsonb(pr) as loaded_provider,
      p.paused_at is not null as loaded_paused,
      coalesce(w.sealed, wu.sealed) as loaded_work,
      coalesce((select jsonb_agg(to_jsonb(s) order by s.n) from generation_steps s where s.generation_id = g.id), '[]') as loaded_steps,
      coalesce((select max(f.seq) from stream_frames f where f.generation_id = g.id), 0) as loaded_frame
    from generations g
    join agents a on a.id = g.agent_id
    join projects p on p.id = g.project_id
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = a.ai_provider_id) pr on true
    left join generation_work w on w.generation_id = g.id
    left join generation_work_unlogged wu on wu.generation_id = g.id
    where g.id = ${id}`)) as
    | (GenerationRow & {
        loaded_agent: AgentRow
        loaded_provider: ProviderRow | null
        loaded_paused: boolean
        loaded_work: string | null
        loaded_steps: StepRow[]
        loaded_frame: number
      })
    | null
  if (!row) return null
  const { loaded_agent, loaded_provider, loaded_paused, loaded_work, loaded_steps, loaded_frame, ...generation } = row
  return {
    generation,
    agent: loaded_agent,
    provider: loaded_provider,
    paused: loaded_paused,
    sealedWork: loaded_work,
    steps: loaded_steps.map(wireStep),
    lastFrame: loaded_frame,
  }
}

/** A step out of jsonb: its times in wire form. */
export const wireStep = <Step extends StepRow>(step: Step): Step => ({
  ...step,
  started_at: new Date(step.started_at).toISOString(),
  completed_at: new Date(step.completed_at).toISOString(),
})

export type Frame = { seq: number; event: string; data: string }

const frameRows = (generationId: string, frames: Frame[], guard: Fragment): Fragment => sql.fragment`
  insert into stream_frames (generation_id, seq, event, data)
  select ${generationId}, f.seq, f.event, f.data
  from ${sql.unnest(
    frames.map(frame => [frame.seq, frame.event, frame.data]),
    ['int4', 'text', 'text'],
  )} as f (seq, event, data) where ${guard}
  on conflict do nothing`

/**
 * Takes a generation for an attempt: guarded by the attempt that was read, so of two executors one gets it. The
 * prepared bag, the first frame and the outbox ride in the same statement. Answers whether it was got.
 */
export async function claimTurn(
  db: Queryable,
  claim: {
    generation: GenerationRow
    attempt: number
    lostAttempts: number
    startedAt: string
    agentVersion: number
    now: string
    sealedWork: string | null
    frames: Frame[]
    outbox: Outbox
  },
): Promise<boolean> {
  const { generation } = claim
  const guard = sql.fragment`exists (select 1 from claimed)`
  const { ctes, select } = outboxParts(claim.outbox, guard)
  const parts = [
    sql.fragment`claimed as (
      update generations set status = 'in_progress', attempt = ${claim.attempt}, lost_attempts = ${claim.lostAttempts}, handed_back = false,
        started_at = ${claim.startedAt}, agent_version = ${claim.agentVersion}, last_activity_at = coalesce(last_activity_at, ${claim.now}), updated_at = ${claim.now}
      where id = ${generation.id} and attempt = ${generation.attempt} and status in ('pending', 'in_progress')
      returning id)`,
    ...(claim.sealedWork === null
      ? []
      : [
          sql.fragment`prepared as (
            update ${workTable(generation.content_mode)} set sealed = ${claim.sealedWork} where generation_id = ${generation.id} and ${guard})`,
        ]),
    ...(claim.frames.length === 0
      ? []
      : [sql.fragment`first_frames as (${frameRows(generation.id, claim.frames, guard)})`]),
    ...ctes,
  ]
  return (
    (await db.oneFirst(sql.unsafe`
    with ${sql.join(parts, sql.fragment`, `)}, told as (${select})
    select (select count(*) from claimed)::int + 0 * (select sent from told)::int as claimed`)) === 1
  )
}

/** Appends frames of a running attempt and tells the listeners. Answers false when the attempt no longer owns the turn. */
export async function appendFrames(
  db: Queryable,
  generationId: string,
  attempt: number,
  frames: Frame[],
  channel: string,
): Promise<boolean> {
  return (
    (await db.oneFirst(sql.unsafe`
    with owned as (select 1 from generations where id = ${generationId} and attempt = ${attempt} and status = 'in_progress'),
      added as (${frameRows(generationId, frames, sql.fragment`exists (select 1 from owned)`)})
    select count(pg_notify(${channel}, ${`${generationId} frames`}))::int as told from owned`)) === 1
  )
}

const stepInsert = (generationId: string, step: StepRow, guard: Fragment): Fragment => sql.fragment`
  insert into generation_steps (generation_id, n, text, finish_reason, model, ai_provider_id, tool_calls, tool_results, usage, started_at, completed_at)
  select ${generationId}, ${step.n}::int, ${step.text}, ${step.finish_reason}, ${step.model}, ${step.ai_provider_id}, ${json(step.tool_calls)},
    ${json(step.tool_results)}, ${json(step.usage)}, ${step.started_at}::timestamptz, ${step.completed_at}::timestamptz
  where ${guard}
  on conflict do nothing`

/** Writes one frame of a turn that the same transaction settled. */
export async function addFrame(db: Queryable, generationId: string, frame: Frame): Promise<void> {
  await db.query(sql.unsafe`${frameRows(generationId, [frame], sql.fragment`true`)}`)
}

/** Journals a settled step of a turn that goes on. Answers false when the attempt no longer owns the turn. */
export async function journalStep(
  db: Queryable,
  generation: GenerationRow,
  step: StepRow,
  frames: Frame[],
  channel: string,
): Promise<boolean> {
  const guard = sql.fragment`exists (select 1 from owned)`
  return (
    (await db.oneFirst(sql.unsafe`
    with owned as (
        update generations set step_count = step_count + 1, lost_attempts = 0, last_activity_at = ${step.completed_at}, updated_at = ${step.completed_at}
        where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress' returning id),
      counted as (update traces set step_count = step_count + 1, updated_at = ${step.completed_at} where id = ${generation.trace_id} and ${guard}),
      journalled as (${stepInsert(generation.id, step, guard)}),
      added as (${frames.length > 0 ? frameRows(generation.id, frames, guard) : sql.fragment`select 1 where false`})
    select count(${frames.length > 0 ? sql.fragment`pg_notify(${channel}, ${`${generation.id} frames`})` : sql.fragment`1`})::int as owned from owned`)) ===
    1
  )
}

/** Stamps a trace as one that keeps no content, unless it has a turn whose content is kept. By generations_trace. */
const stamped = (row: GenerationRow): Fragment => {
  const kept = sql.fragment`exists (
    select 1 from generations g where g.trace_id = traces.id and g.content_mode = 'full')`
  const columns = [
    'content_redacted_at',
    'content_redacted_by_principal_type',
    'content_redacted_by_principal_id',
  ] as const
  return sql.fragment`${sql.join(
    columns.map(name => {
      const column = sql.identifier([name])
      return sql.fragment`, ${column} = case when ${kept} then ${column} else coalesce(${column}, ${row[name]}) end`
    }),
    sql.fragment``,
  )}`
}

export type Settlement = {
  generation: GenerationRow
  /** The record as it stands afterwards. */
  after: GenerationRow
  step: StepRow | null
  frames: Frame[]
  outbox: Outbox
  sends?: SendPart[]
}

/**
 * Ends an attempt in one statement: the record, its trace, the last step, the bag, the last frames, events and
 * notifications. Guarded by the attempt; answers false when another process owns the turn.
 */
export async function settleTurn(db: Queryable, settlement: Settlement): Promise<boolean> {
  const { generation, after, step } = settlement
  const guard = sql.fragment`exists (select 1 from settled)`
  // Behind the lock of the trace, under which those who are woken look.
  const { ctes, select } = outboxParts(settlement.outbox, sql.fragment`exists (select 1 from traced)`, settlement.sends)
  const parts = [
    sql.fragment`settled as (
      update generations set status = ${after.status}, stop_reason = ${after.stop_reason}, error = ${json(after.error)}, output = ${json(after.output)},
        input = ${json(after.input)}, usage = ${json(after.usage)}, step_count = ${after.step_count}, completed_at = ${after.completed_at},
        last_activity_at = ${after.last_activity_at}, updated_at = ${after.updated_at}, metadata = ${generation.content_mode === 'none' ? jsonb(null) : sql.fragment`metadata`},
        content_redacted_at = ${after.content_redacted_at}, content_redacted_by_principal_type = ${after.content_redacted_by_principal_type},
        content_redacted_by_principal_id = ${after.content_redacted_by_principal_id}
      where id = ${generation.id} and attempt = ${generation.attempt} and status in ('pending', 'in_progress')
      returning id)`,
    sql.fragment`traced as (
      update traces set step_count = step_count + ${step ? 1 : 0}, updated_at = ${after.updated_at}
        ${after.error ? sql.fragment`, error = ${json(after.error)}` : sql.fragment``}
        ${after.content_redacted_at ? stamped(after) : sql.fragment``}
      where id = ${generation.trace_id} and ${guard} returning id)`,
    sql.fragment`emptied as (delete from ${workTable(generation.content_mode)} where generation_id = ${generation.id} and ${guard})`,
    ...(step ? [sql.fragment`journalled as (${stepInsert(generation.id, step, guard)})`] : []),
    ...(settlement.frames.length > 0
      ? [sql.fragment`last_frames as (${frameRows(generation.id, settlement.frames, guard)})`]
      : []),
    ...ctes,
  ]
  return (
    (await db.oneFirst(sql.unsafe`
    with ${sql.join(parts, sql.fragment`, `)}, told as (${select})
    select (select count(*) from settled)::int + 0 * (select sent from told)::int as settled`)) === 1
  )
}

/** Gives a running turn back without counting the attempt as lost. */
export async function handBackTurn(db: Queryable, generation: GenerationRow): Promise<void> {
  await db.query(
    sql.unsafe`update generations set handed_back = true where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress'`,
  )
}

/** A settled or running generation with what its last frame says. */
export async function findWithResult(
  db: Queryable,
  id: string,
): Promise<(GenerationRow & { last_frame: { seq: number; data: string } | null }) | null> {
  return (await db.maybeOne(sql.unsafe`
    select g.*, (
      select jsonb_build_object('seq', f.seq, 'data', f.data) from stream_frames f
      where f.generation_id = g.id and f.event in ('completed', 'error', 'requires_action') limit 1) as last_frame
    from generations g where g.id = ${id}`)) as
    | (GenerationRow & { last_frame: { seq: number; data: string } | null })
    | null
}

/** Number of the last frame of a turn; 0 before the first. */
export async function lastFrame(db: Queryable, id: string): Promise<number> {
  return (await db.oneFirst(
    sql.unsafe`select coalesce(max(seq), 0) from stream_frames where generation_id = ${id}`,
  )) as number
}

/** Frames after a position, in order. */
export async function framesAfter(db: Queryable, id: string, after: number): Promise<readonly Frame[]> {
  return (await db.any(
    sql.unsafe`select seq, event, data from stream_frames where generation_id = ${id} and seq > ${after} order by seq limit 1000`,
  )) as readonly Frame[]
}

/** The file of a trace `tr`, by the primary key. */
const traceFile = sql.fragment`(
  select to_jsonb(f) from (select ${fileColumns} from files t where t.id = tr.file_id) f)`

/** The steps of a generation that the journal has, and the file that has those of its trace, as of one moment. */
export async function findJournal(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'trace_id'>,
): Promise<{ steps: StepRow[]; file: FileRow | null }> {
  const { steps, file } = (await db.one(sql.unsafe`
    select coalesce((
        select jsonb_agg(to_jsonb(s) - 'generation_id' order by s.n) from generation_steps s
        where s.generation_id = ${generation.id}), '[]') as steps,
      (select ${traceFile} from traces tr where tr.id = ${generation.trace_id}) as file`)) as {
    steps: StepRow[]
    file: FileRow | null
  }
  return { steps: steps.map(wireStep), file }
}

/** What is to go into the file of a trace. */
export type Journals = {
  id: string
  project_id: string
  redacted: boolean
  file: (FileRow & Location) | null
  /** Generations that are at their end, with the steps that the journal has of them; those without any are absent. */
  settled: { id: string; redacted: boolean; steps: StepRow[] }[]
  /** Ids of all generations whose content is kept, in their order. */
  kept: string[]
}

/** Waits for turns of traces that are being settled: a message that they would have sent is the one at hand. */
export const awaitSettling = (db: Queryable, traceIds: readonly string[]) =>
  db.query(sql.unsafe`
    select 1 from traces where id = any(${sql.array([...traceIds], 'text')}) order by id for share`)

/** The journals of traces with their files, as of one moment. Indexes generations_trace, generation_steps_pkey. */
export async function readJournals(db: Queryable, traceIds: readonly string[]): Promise<Journals[]> {
  const rows = (await db.any(sql.unsafe`
    select tr.id, tr.project_id, tr.content_redacted_at is not null as redacted, ${traceFile} as file,
      coalesce((
        select jsonb_agg(jsonb_build_object('id', g.id, 'redacted', g.content_redacted_at is not null, 'steps', j.steps))
        from generations g cross join lateral (
          select jsonb_agg(to_jsonb(s) - 'generation_id' order by s.n) as steps from generation_steps s
          where s.generation_id = g.id) j
        where g.trace_id = tr.id and g.status in ('completed', 'failed') and j.steps is not null), '[]') as settled,
      array(select g.id from generations g where g.trace_id = tr.id and g.content_redacted_at is null
        order by g.created_at, g.id) as kept
    from traces tr where tr.id = any(${sql.array([...traceIds], 'text')})`)) as readonly Journals[]
  return rows.map(row => ({
    ...row,
    settled: row.settled.map(({ steps, ...generation }) => ({ ...generation, steps: steps.map(wireStep) })),
  }))
}

/** Where the files of traces are that keep their content, under the locks of the traces; null without a file. */
export async function lockTraceFiles(
  db: Queryable,
  traceIds: readonly string[],
): Promise<ReadonlyMap<string, string | null>> {
  const rows = (await db.any(sql.unsafe`
    select tr.id, (select f.location from files f where f.id = tr.file_id) as location
    from traces tr where tr.id = any(${sql.array([...traceIds], 'text')}) and tr.content_redacted_at is null
    order by tr.id for update`)) as readonly { id: string; location: string | null }[]
  return new Map(rows.map(({ id, location }) => [id, location]))
}

/** Drops the steps of generations from the journal; answers how many there were. */
export async function dropJournal(db: Queryable, generationIds: readonly string[]): Promise<number> {
  const { rowCount } = await db.query(sql.unsafe`
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
  db.query(sql.unsafe`
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

/** Takes the files of traces away from them, whose locks the caller holds, and answers where their bytes are. */
export const takeTraceFiles = (db: Queryable, traceIds: readonly string[]): Promise<readonly Location[]> =>
  db.any(sql.unsafe`
    with held as (
      select id, file_id from traces where id = any(${sql.array([...traceIds], 'text')}) and file_id is not null
    ), named as (
      update traces t set file_id = null from held where t.id = held.id
    )
    delete from files f using held where f.id = held.file_id returning f.storage, f.location`) as Promise<
    readonly Location[]
  >

export const deleteTraces = (db: Queryable, ids: readonly string[]) =>
  db.query(sql.unsafe`delete from traces where id = any(${sql.array([...ids], 'text')})`)

/**
 * Traces whose settled steps have been in the journal for a while: the message that moves them may be missing. Reads the
 * journal, which has little else.
 */
export async function unwrittenTraces(
  db: Queryable,
  idleSeconds: number,
  limit: number,
): Promise<readonly { trace_id: string; project_id: string }[]> {
  return (await db.any(sql.unsafe`
    select distinct g.trace_id, g.project_id
    from generation_steps s join generations g on g.id = s.generation_id join traces tr on tr.id = g.trace_id
    where g.status in ('completed', 'failed') and g.completed_at < now() - make_interval(secs => ${idleSeconds})
      and (tr.content_redacted_at is null or g.content_redacted_at is not null)
    limit ${limit}`)) as readonly { trace_id: string; project_id: string }[]
}

export async function lockGeneration(db: Queryable, id: string): Promise<GenerationRow | null> {
  return (await db.maybeOne(sql.unsafe`select * from generations where id = ${id} for update`)) as GenerationRow | null
}

/** A turn that has not started, with its sealed bag; null when there is none. Its row is locked. */
export async function findPendingWork(
  db: Queryable,
  id: string,
): Promise<(Pick<GenerationRow, 'id' | 'project_id' | 'content_mode' | 'permission'> & { sealed: string }) | null> {
  return (await db.maybeOne(sql.unsafe`
    select g.id, g.project_id, g.content_mode, g.permission, coalesce(w.sealed, wu.sealed) as sealed
    from generations g
    left join generation_work w on w.generation_id = g.id
    left join generation_work_unlogged wu on wu.generation_id = g.id
    where g.id = ${id} and g.status = 'pending' and coalesce(w.sealed, wu.sealed) is not null
    for update of g`)) as
    | (Pick<GenerationRow, 'id' | 'project_id' | 'content_mode' | 'permission'> & { sealed: string })
    | null
}

/** Writes whom a turn that has not started runs as, and its bag. */
export async function amendGeneration(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'content_mode'>,
  change: Pick<GenerationRow, 'authority' | 'permission' | 'started_by_principal_type' | 'started_by_principal_id'> & {
    sealedWork: string
  },
): Promise<void> {
  await db.query(sql.unsafe`
    with work as (
      update ${workTable(generation.content_mode)} set sealed = ${change.sealedWork} where generation_id = ${generation.id})
    update generations set authority = ${json(change.authority)}, permission = ${json(change.permission)},
      started_by_principal_type = ${change.started_by_principal_type},
      started_by_principal_id = ${change.started_by_principal_id}, updated_at = now()
    where id = ${generation.id} and status = 'pending'`)
}

export async function requestAbort(
  db: Queryable,
  id: string,
  abort: RecordedFailure & { stop_reason: string },
): Promise<void> {
  await db.query(sql.unsafe`update generations set abort = coalesce(abort, ${json(abort)}) where id = ${id}`)
}

/** Of turns that run here: those whose abort was asked for, or that another attempt owns. */
export async function disturbed(
  db: Queryable,
  running: { id: string; attempt: number }[],
): Promise<
  readonly { id: string; attempt: number; abort: GenerationRow['abort']; status: string; running_attempt: number }[]
> {
  return (await db.any(sql.unsafe`
    select r.id, r.attempt as running_attempt, g.attempt, g.abort, coalesce(g.status, 'gone') as status
    from ${sql.unnest(
      running.map(item => [item.id, item.attempt]),
      ['text', 'int4'],
    )} as r (id, attempt)
    left join generations g on g.id = r.id
    where g.id is null or g.abort is not null or g.attempt <> r.attempt`)) as never
}

/** Turns outside a conversation that nobody has touched for a while: their wake-up may be missing. Index generations_open. */
export async function idleTurns(
  db: Queryable,
  idleSeconds: number,
): Promise<readonly { id: string; project_id: string }[]> {
  return (await db.any(sql.unsafe`
    select g.id, g.project_id from generations g join projects p on p.id = g.project_id
    where g.status in ('pending', 'in_progress') and g.conversation_id is null and p.paused_at is null
      and g.updated_at < now() - make_interval(secs => ${idleSeconds})
    order by g.updated_at limit 1000`)) as readonly { id: string; project_id: string }[]
}

/** Drops frames of turns that ended more than ten minutes ago. */
export async function dropOldFrames(db: Queryable): Promise<void> {
  await db.query(sql.unsafe`
    delete from stream_frames f using generations g
    where g.id = f.generation_id and f.created_at < now() - interval '10 minutes' and g.status in ('completed', 'failed') and g.completed_at < now() - interval '10 minutes'`)
}

/** One merge, so that concurrent patches of different keys both survive. */
export async function mergeMetadata(db: Queryable, id: string, metadata: object): Promise<GenerationRow> {
  return (await db.one(sql.unsafe`
    update generations set metadata = coalesce(metadata, '{}') || ${json(metadata)}, updated_at = now() where id = ${id} returning *`)) as GenerationRow
}

export async function findTrace(db: Queryable, id: string): Promise<TraceRow | null> {
  return (await db.maybeOne(sql.unsafe`select * from traces where id = ${id}`)) as TraceRow | null
}

/** The whole tree of a trace, parents before children; one more than `limit` when it is larger. Index traces_root. */
export async function findTree(db: Queryable, rootId: string, limit: number): Promise<readonly TraceRow[]> {
  return (await db.any(sql.unsafe`
    select * from traces where id = ${rootId} or root_trace_id = ${rootId} order by (id = ${rootId}) desc, created_at, id limit ${limit + 1}`)) as readonly TraceRow[]
}

/** A trace and every descendant of it. */
export async function lockSubtree(db: Queryable, id: string): Promise<readonly TraceRow[]> {
  return (await db.any(sql.unsafe`
    with recursive subtree as (
      select t.id from traces t where t.id = ${id}
      union all select t.id from traces t join subtree s on t.parent_trace_id = s.id)
    select t.* from traces t where t.id in (select id from subtree) order by t.id for update`)) as readonly TraceRow[]
}

export async function generationsOf(
  db: Queryable,
  traceIds: readonly string[],
  lock = false,
): Promise<readonly GenerationRow[]> {
  return (await db.any(sql.unsafe`
    select * from generations where trace_id = any(${sql.array([...traceIds], 'text')}) order by created_at, id ${lock ? sql.fragment`for update` : sql.fragment``}`)) as readonly GenerationRow[]
}

type Redaction = { type: string; id: string }

/** Erases the content of generations; the skeleton stays. The first stamp stays. */
export async function redactGenerations(
  db: Queryable,
  ids: readonly string[],
  by: Redaction,
): Promise<readonly GenerationRow[]> {
  const list = sql.array([...ids], 'text')
  return (await db.any(sql.unsafe`
    with steps as (delete from generation_steps where generation_id = any(${list})),
      frames as (delete from stream_frames where generation_id = any(${list})),
      work as (delete from generation_work where generation_id = any(${list})),
      hidden as (delete from generation_work_unlogged where generation_id = any(${list}))
    update generations set metadata = null, error = null, input = null, output = null, required_action = null, content_redacted_at = now(),
      content_redacted_by_principal_type = ${by.type}, content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${list}) and content_redacted_at is null
    returning *`)) as readonly GenerationRow[]
}

export async function redactTraces(db: Queryable, ids: readonly string[], by: Redaction): Promise<readonly TraceRow[]> {
  return (await db.any(sql.unsafe`
    update traces set error = null, content_redacted_at = now(), content_redacted_by_principal_type = ${by.type}, content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${sql.array([...ids], 'text')}) and content_redacted_at is null
    returning *`)) as readonly TraceRow[]
}

const CONTENT_FIELDS = ['metadata', 'error', 'output', 'input', 'required_action'] as const

/**
 * The only rewrite an envelope ever sees: content fields of the record inside `data` become null, in the
 * event, in what is retained of events for their deliveries, and in every copy that a delivery holds. Indexes
 * events_resource, retained_envelopes_resource and webhook_deliveries_event.
 */
export async function redactEnvelopes(db: Queryable, resources: readonly string[]): Promise<void> {
  const nulls = JSON.stringify(Object.fromEntries(CONTENT_FIELDS.map(field => [field, null])))
  const redacted = (
    envelope: Fragment,
  ) => sql.fragment`jsonb_set(${envelope}::jsonb, '{data}', (${envelope}::jsonb -> 'data') || (
    select coalesce(jsonb_object_agg(n.key, n.value), '{}') from jsonb_each(${nulls}::jsonb) n where ${envelope}::jsonb -> 'data' ? n.key))::text`
  const theirs = sql.fragment`
    resource_id = any(${sql.array([...resources], 'text')}) and resource_type in ('generation', 'trace')`
  // Waits for a retention that is moving them: a statement that began before would not see where they went.
  await db.query(statement`select from events where ${theirs} order by id for no key update`)
  await db.query(sql.unsafe`
    with held as (
      select id from events where ${theirs} union all select event_id from retained_envelopes where ${theirs}),
    retained as (
      update retained_envelopes k set envelope = ${redacted(sql.fragment`k.envelope`)} where ${theirs}),
    copies as (
      update webhook_deliveries d set envelope = ${redacted(sql.fragment`d.envelope`)}
      where d.event_id in (select id from held) and d.envelope is not null)
    update events e set envelope = ${redacted(sql.fragment`e.envelope`)} where e.id in (select id from held)`)
}
