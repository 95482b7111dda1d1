import { z } from 'zod'
import { type FileRow, fileKind } from '../../content/files/model.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type MemoryEntryRow, memoryEntryKind } from '../../memory/entries/model.ts'
import { JournalRow, journalInsert } from './journal/store.ts'
import { AbortRequest, type GenerationRow, generationKind, JournalStepRow, type Knowledge } from './model.ts'

/** Files of a project by their ids, in any order; by the primary key. */
export const findFiles = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly FileRow[]> =>
  db.any(fileKind.sql`
    select ${fileKind.columns} from files t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)

/** Where the working state of a turn is, by its content mode. */
export const turnDataTable = (mode: 'full' | 'none') =>
  sql.identifier([mode === 'none' ? 'generation_work_unlogged' : 'generation_work'])

/**
 * How many turns are not at their end, as an expression: those that have working state, by the primary keys. Their usage is
 * written with their end.
 */
export const activeTurnCount = ({
  project,
  agent,
  actor,
}: {
  project: Fragment
  agent: Fragment
  actor: Fragment
}): Fragment =>
  sql.fragment`(
    select count(*) from generation_work w join generations g on g.id = w.generation_id
    where g.project_id = ${project} and (${agent} is null or g.agent_id = ${agent}) and (${actor} is null or g.actor_id = ${actor}))`

const withResult = sql.type(
  generationKind.row.extend({ last_frame: z.object({ seq: z.int(), data: z.string() }).nullable() }),
)

/** A settled or running generation with what its last frame says. */
export const findWithResult = (db: Queryable, id: string) =>
  db.maybeOne(withResult`
    select ${generationKind.columns}, (
      select jsonb_build_object('seq', f.seq, 'data', f.data) from stream_frames f
      where f.generation_id = t.id and f.event in ('completed', 'error', 'requires_action') order by f.seq desc limit 1) as last_frame
    from generations t where t.id = ${id}`)

const PendingWork = generationKind.row
  .pick({ id: true, project_id: true, content_mode: true, permission: true })
  .extend({ sealed: z.string() })
const pendingWork = sql.type(PendingWork)

/**
 * A turn that has not started, with its sealed working state; null when there is none. Its row is locked. Where that waits,
 * the working state is the one of before: callers hold a lock already that every change of it takes.
 */
export const findPendingTurnData = (db: Queryable, id: string): Promise<z.output<typeof PendingWork> | null> =>
  db.maybeOne(pendingWork`
    select g.id, g.project_id, g.content_mode, g.permission, coalesce(w.sealed, wu.sealed) as sealed
    from generations g
    left join generation_work w on w.generation_id = g.id
    left join generation_work_unlogged wu on wu.generation_id = g.id
    where g.id = ${id} and g.status = 'pending' and coalesce(w.sealed, wu.sealed) is not null
    for update of g`)

const sealedWork = sql.type(z.object({ sealed: z.string() }))

/** The sealed working state of a turn that is not at its end. By the primary keys. */
export const findTurnData = (db: Queryable, id: string): Promise<string | null> =>
  db.maybeOneFirst(sealedWork`
    select sealed from generation_work where generation_id = ${id}
    union all select sealed from generation_work_unlogged where generation_id = ${id}`)

/** Writes whom a turn that has not started runs as, and its working state. */
export async function updatePendingGeneration(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'content_mode'>,
  change: Pick<GenerationRow, 'authority' | 'permission' | 'started_by_principal_type' | 'started_by_principal_id'> & {
    sealedWork: string
  },
): Promise<void> {
  await db.query(voidStatement`
    with work as (
      update ${turnDataTable(generation.content_mode)} set sealed = ${change.sealedWork} where generation_id = ${generation.id})
    update generations set authority = ${jsonb(change.authority)}, permission = ${jsonb(change.permission)},
      started_by_principal_type = ${change.started_by_principal_type},
      started_by_principal_id = ${change.started_by_principal_id}, updated_at = now()
    where id = ${generation.id} and status = 'pending'`)
}

const left = sql.type(z.object({ steps: z.array(JournalStepRow), journal: z.array(JournalRow) }))

/** The settled steps of a turn, and its journal of the one under way. By primary keys. */
export const loadAbandonedSteps = (db: Queryable, { id }: Pick<GenerationRow, 'id'>) =>
  db.one(left`
    select coalesce((
        select jsonb_agg(to_jsonb(s) - 'generation_id' order by s.n) from generation_steps s
        where s.generation_id = ${id}), '[]') as steps,
      (select coalesce(json_agg(j order by j.n, j.position), '[]') from (
        select n, position, body from generation_journal where generation_id = ${id}
        union all select n, position, body from generation_journal_unlogged where generation_id = ${id}) j) as journal`)

export const requestAbort = (db: Queryable, id: string, abort: z.output<typeof AbortRequest>) =>
  db.query(voidStatement`update generations set abort = coalesce(abort, ${jsonb(abort)}) where id = ${id}`)

const disturbance = sql.type(
  z.object({
    id: z.string(),
    running_attempt: z.int(),
    /** Null when the generation is gone. */
    attempt: z.int().nullable(),
    abort: AbortRequest.nullable(),
    status: z.string(),
  }),
)

/** Of turns that run here: those whose abort was asked for, or that another attempt owns. */
export const listAbortedOrLost = (db: Queryable, running: { id: string; attempt: number }[]) =>
  db.any(disturbance`
    select r.id, r.attempt as running_attempt, g.attempt, g.abort, coalesce(g.status, 'gone') as status
    from ${sql.unnest(
      running.map(item => [item.id, item.attempt]),
      ['text', 'int4'],
    )} as r (id, attempt)
    left join generations g on g.id = r.id
    where g.id is null or g.abort is not null or g.attempt <> r.attempt`)

const idle = sql.type(z.object({ id: z.string(), project_id: z.string() }))

/** Turns outside a conversation that nobody has touched for a while: their wake-up may be missing. Reads generation_work, which has those that are not at their end. */
export const listTurnsWithoutWakeUp = (db: Queryable, idleSeconds: number) =>
  db.any(idle`
    select g.id, g.project_id from generation_work w join generations g on g.id = w.generation_id join projects p on p.id = g.project_id
    where g.status in ('pending', 'in_progress') and g.conversation_id is null and p.paused_at is null
      and g.updated_at < now() - make_interval(secs => ${idleSeconds})
    order by g.updated_at limit 1000`)

/** Since when the oldest turn outside of a conversation waits for a worker. */
export const oldestPending: Fragment = sql.fragment`(
  select min(g.created_at) from (
    select generation_id from generation_work union all select generation_id from generation_work_unlogged) w
  join generations g on g.id = w.generation_id join projects p on p.id = g.project_id
  where g.status = 'pending' and g.conversation_id is null and p.paused_at is null)`

const paused = sql.type(z.object({ id: z.string() }))

/** Turns that have waited for their clients for so long. Reads generation_work, which has those that are not at their end. */
export const overdueActions = (db: Queryable, ttlSeconds: number, limit: number) =>
  db.any(paused`
    select g.id from generation_work w join generations g on g.id = w.generation_id
    where g.status = 'requires_action' and g.last_activity_at < now() - make_interval(secs => ${ttlSeconds})
    order by g.last_activity_at limit ${limit}`)

/** Lets a turn that was just made begin with a pause. */
export async function startPaused(
  db: Queryable,
  generation: GenerationRow,
  entries: readonly JournalRow[],
): Promise<void> {
  await db.query(voidStatement`
    with entries as (${journalInsert(generation, entries, sql.fragment`true`)})
    update generations set status = 'requires_action', required_action = ${jsonb(generation.required_action)},
      agent_version = ${generation.agent_version}, started_at = ${generation.started_at}, journalled = 1,
      last_activity_at = ${generation.last_activity_at}, updated_at = ${generation.updated_at}
    where id = ${generation.id}`)
}

/** Lets a paused turn go on, under its lock: what its client answered, and the settings that came with it. */
export async function resumeTurn(
  db: Queryable,
  generation: GenerationRow,
  { entries, sealedWork, streamed }: { entries: readonly JournalRow[]; sealedWork: string; streamed: boolean },
): Promise<void> {
  const guard = sql.fragment`exists (select 1 from resumed)`
  await db.query(voidStatement`
    with resumed as (
        update generations set status = 'in_progress', handed_back = true, required_action = null, streamed = ${streamed},
          journalled = journalled + 1, last_activity_at = now(), updated_at = now()
        where id = ${generation.id} and status = 'requires_action' returning id),
      entries as (${journalInsert(generation, entries, guard)})
    update ${turnDataTable(generation.content_mode)} set sealed = ${sealedWork} where generation_id = ${generation.id} and ${guard}`)
}

/** Keeps what a turn was given of what its agent knows; false when another attempt owns it. */
export async function keepKnowledge(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'attempt' | 'content_mode'>,
  sealedWork: string,
  knowledge: Knowledge,
): Promise<boolean> {
  const shown = generation.content_mode === 'full' ? knowledge : null
  const { rowCount } = await db.query(voidStatement`
    with owned as (
      update generations set knowledge = ${jsonb(shown)}
      where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress' returning id)
    update ${turnDataTable(generation.content_mode)} set sealed = ${sealedWork}
    where generation_id in (select id from owned)`)
  return rowCount === 1
}

/** Gives the turns of an end user to another, by generations_actor. */
export const moveTurnsOfActor = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(voidStatement`update generations set actor_id = ${to} where actor_id = ${from}`)

/** What a generation brought into memory stores, oldest first. By memory_entries_generation. */
export const entriesOfGeneration = (db: Queryable, id: string): Promise<readonly MemoryEntryRow[]> =>
  db.any(memoryEntryKind.sql`
    select ${memoryEntryKind.columns} from memory_entries t where t.generation_id = ${id}
    order by t.created_at, t.id limit 100`)

/** Adds what memory rules made of a turn, by their ids: one merge, so that none loses what another one adds. */
export const addExtraction = (
  db: Queryable,
  id: string,
  extraction: NonNullable<GenerationRow['extraction']>,
): Promise<unknown> =>
  db.query(voidStatement`
    update generations set extraction = coalesce(extraction, '{}') || ${jsonb(extraction)}, updated_at = now()
    where id = ${id} and content_redacted_at is null`)

/** Makes a turn that others carry on after the first one of their chain. */
export const joinChain = (db: Queryable, id: string, chainId: string) =>
  db.query(voidStatement`update generations set chain_id = ${chainId} where id = ${id} and chain_id is null`)

/** One merge, so that concurrent patches of different keys both survive. */
export const mergeMetadata = (db: Queryable, id: string, metadata: object): Promise<GenerationRow> =>
  db.one(generationKind.sql`
    update generations t set metadata = coalesce(t.metadata, '{}') || ${jsonb(metadata)}, updated_at = now()
    where t.id = ${id} returning ${generationKind.columns}`)

/** The generations of traces in their order; by generations_trace. */
export const generationsOf = (db: Queryable, traceIds: readonly string[]): Promise<readonly GenerationRow[]> =>
  db.any(generationKind.sql`
    select ${generationKind.columns} from generations t where t.trace_id = any(${sql.array([...traceIds], 'text')})
    order by t.created_at, t.id`)
