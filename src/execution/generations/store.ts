import { z } from 'zod'
import { type FileRow, fileKind } from '#content/files/model.ts'
import { isTracing, traceContext } from '#core/base/telemetry.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type MemoryEntryRow, memoryEntryKind } from '#memory/entries/model.ts'
import { type JournalRow, journalInsert } from './journal/store.ts'
import { AbortRequest, type GenerationRow, generationKind, JournalStepRow, type Knowledge } from './model.ts'
import { lostHoldersCte } from './recovery/interruptions.ts'
import { visibleSteps } from './traces/store.ts'

/** Returns the files of a project with these ids, in any order. By the primary key. */
export const findFiles = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly FileRow[]> =>
  db.any(fileKind.sql`
    select ${fileKind.columns} from files t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)

/** Table with the turn data of turns in a content mode. */
export const turnDataTable = (mode: 'full' | 'none') =>
  sql.identifier([mode === 'none' ? 'generation_work_unlogged' : 'generation_work'])

/**
 * Expression that counts the turns that have not settled, which are the turns with turn data. By the primary keys.
 * Their usage is written when they settle.
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

const resultRow = sql.type(
  generationKind.row.extend({
    last_frame: z.object({ seq: z.int(), data: z.string() }).nullable(),
    steps: z.array(JournalStepRow).nullable(),
  }),
)

/** Returns a generation with its last result frame or, if it settled without one, with its journalled steps. */
export const findWithResult = (db: Queryable, id: string) =>
  db.maybeOne(resultRow`
    select ${generationKind.columns}, f.last_frame,
      case when f.last_frame is null and t.status = 'completed' and t.shape = 'agent' then (
        select ${visibleSteps} from generations g where g.id = t.id) end as steps
    from generations t left join lateral (
      select jsonb_build_object('seq', f.seq, 'data', f.data) as last_frame from stream_frames f
      where f.generation_id = t.id and f.event in ('completed', 'error', 'requires_action') order by f.seq desc limit 1) f on true
    where t.id = ${id}`)

const PendingTurnData = generationKind.row
  .pick({ id: true, project_id: true, content_mode: true, permission: true })
  .extend({ sealed: z.string() })
const pendingTurnDataRow = sql.type(PendingTurnData)

/**
 * Locks a turn that has not started and returns its sealed turn data, or null. If the lock waits, the turn data is the
 * version from before the wait: callers hold a lock that every change of the turn data requires.
 */
export const findPendingTurnData = (db: Queryable, id: string): Promise<z.output<typeof PendingTurnData> | null> =>
  db.maybeOne(pendingTurnDataRow`
    select g.id, g.project_id, g.content_mode, g.permission, coalesce(w.sealed, wu.sealed) as sealed
    from generations g
    left join generation_work w on w.generation_id = g.id
    left join generation_work_unlogged wu on wu.generation_id = g.id
    where g.id = ${id} and g.status = 'pending' and coalesce(w.sealed, wu.sealed) is not null
    for update of g`)

const sealedRow = sql.type(z.object({ sealed: z.string() }))

/** Returns the sealed turn data of a turn that has not settled. By the primary keys. */
export const findTurnData = (db: Queryable, id: string): Promise<string | null> =>
  db.maybeOneFirst(sealedRow`
    select sealed from generation_work where generation_id = ${id} and sealed is not null
    union all select sealed from generation_work_unlogged where generation_id = ${id}`)

/** Bytes of stored contexts up to which the context of a further message is added, which the turn links. */
const MAX_CONTEXT_BYTES = 1000

/** Updates the principal and the turn data of a turn that has not started, for a message that joins it. */
export async function updatePendingGeneration(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'content_mode'>,
  change: Pick<GenerationRow, 'authority' | 'permission' | 'started_by_principal_type' | 'started_by_principal_id'> & {
    sealedData: string
  },
): Promise<void> {
  const { id, content_mode } = generation
  const context = sql.fragment`trace_context = case when octet_length(trace_context) > ${MAX_CONTEXT_BYTES} then trace_context
    else nullif(concat_ws(' ', trace_context, ${traceContext()}::text), '') end`
  const joined =
    content_mode === 'none' && isTracing()
      ? sql.fragment`joined as (update generation_work set ${context} where generation_id = ${id}), `
      : sql.fragment``
  await db.query(voidStatement`
    with ${joined} work as (
      update ${turnDataTable(content_mode)} set sealed = ${change.sealedData}
        ${content_mode === 'full' && isTracing() ? sql.fragment`, ${context}` : sql.fragment``} where generation_id = ${id})
    update generations set authority = ${jsonb(change.authority)}, permission = ${jsonb(change.permission)},
      started_by_principal_type = ${change.started_by_principal_type},
      started_by_principal_id = ${change.started_by_principal_id}, updated_at = now()
    where id = ${id} and status = 'pending'`)
}

/** Stores the request to abort a turn; the first request wins. */
export const requestAbort = (db: Queryable, id: string, abort: z.output<typeof AbortRequest>) =>
  db.query(voidStatement`update generations set abort = coalesce(abort, ${jsonb(abort)}) where id = ${id}`)

const abortedOrLostRow = sql.type(
  z.object({
    id: z.string(),
    running_attempt: z.int(),
    /** Null when the generation is gone. */
    attempt: z.int().nullable(),
    abort: AbortRequest.nullable(),
    status: z.string(),
  }),
)

/** Returns the turns of this process whose abort was requested or whose claim was lost. */
export const listAbortedOrLost = (db: Queryable, running: { id: string; attempt: number }[]) =>
  db.any(abortedOrLostRow`
    select r.id, r.attempt as running_attempt, g.attempt, g.abort, coalesce(g.status, 'gone') as status
    from ${sql.unnest(
      running.map(item => [item.id, item.attempt]),
      ['text', 'int4'],
    )} as r (id, attempt)
    left join generations g on g.id = r.id
    where g.id is null or g.abort is not null or g.attempt <> r.attempt`)

const turnRefRow = sql.type(z.object({ id: z.string(), project_id: z.string() }))

/**
 * Clears the holder of turns that web processes execute without a message: of one turn, or where it satisfies `isGone`, and
 * records their attempts as lost then.
 * Returns the turns that a worker must continue. Without one turn it scans generation_work, which contains only turns that have
 * not settled.
 */
export const clearHolders = (
  db: Queryable,
  of: { generation: string; holder: string } | { isGone: (holder: Fragment) => Fragment },
) =>
  db.any(turnRefRow`
    with gone as (
        select w.generation_id, w.holder from generation_work w
        where w.holder is not null
          and ${
            'isGone' in of
              ? of.isGone(sql.fragment`w.holder`)
              : sql.fragment`w.generation_id = ${of.generation} and w.holder = ${of.holder}`
          }
        for update of w),
      ${'isGone' in of ? sql.fragment`${lostHoldersCte},` : sql.fragment``}
      cleared as (
        update generation_work w set holder = null from gone where w.generation_id = gone.generation_id
        returning w.generation_id)
    select g.id, g.project_id from cleared c join generations g on g.id = c.generation_id where g.status = 'in_progress'`)

/** Condition on a turn with its row `work` of generation_work: its holder, a web process, executes it without a message. */
export const isExecutedByHolder = (turn: Fragment, work: Fragment): Fragment =>
  sql.fragment`(${work}.holder is not null and ${turn}.status = 'in_progress' and not ${turn}.handed_back)`

/**
 * Returns turns outside conversations without progress for `idleSeconds`, whose wake-up may be missing. Reads
 * generation_work, which contains only turns that have not settled.
 */
export const listTurnsWithoutWakeUp = (db: Queryable, idleSeconds: number) =>
  db.any(turnRefRow`
    select g.id, g.project_id from generation_work w join generations g on g.id = w.generation_id join projects p on p.id = g.project_id
    where g.status in ('pending', 'in_progress') and g.conversation_id is null and p.paused_at is null and not ${isExecutedByHolder(sql.fragment`g`, sql.fragment`w`)}
      and g.updated_at < now() - make_interval(secs => ${idleSeconds}) and (g.model_retry_at is null or g.model_retry_at < now())
    order by g.updated_at limit 1000`)

/** Expression for the creation time of the oldest pending turn outside conversations. */
export const oldestPending: Fragment = sql.fragment`(
  select min(g.created_at) from (
    select generation_id from generation_work union all select generation_id from generation_work_unlogged) w
  join generations g on g.id = w.generation_id join projects p on p.id = g.project_id
  where g.status = 'pending' and g.conversation_id is null and p.paused_at is null)`

/** Counts the turns created in the last minute, and how many of them failed. One lookup per project in generations_project. */
export const countRecentTurns = (db: Queryable): Promise<{ turns: number; failed: number }> =>
  db.one(sql.type(z.strictObject({ turns: z.int(), failed: z.int() }))`
    select coalesce(sum(turns), 0)::int as turns, coalesce(sum(failed), 0)::int as failed
    from projects p cross join lateral (
      select count(*) as turns, count(*) filter (where g.status = 'failed') as failed
      from generations g where g.project_id = p.id and g.created_at > now() - interval '1 minute') recent`)

/**
 * Returns turns that have awaited tool outputs for more than `ttlSeconds`. Reads generation_work, which contains only
 * turns that have not settled.
 */
export const listOverdueActions = (db: Queryable, ttlSeconds: number, limit: number) =>
  db.any(idStatement`
    select g.id from generation_work w join generations g on g.id = w.generation_id
    where g.status = 'requires_action' and g.last_activity_at < now() - make_interval(secs => ${ttlSeconds})
    order by g.last_activity_at limit ${limit}`)

/** Updates a turn that was just inserted so that it starts paused. */
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

/** Resumes a paused turn under its lock and stores the tool outputs and the settings submitted with them. */
export async function resumeTurn(
  db: Queryable,
  generation: GenerationRow,
  { entries, sealedData, streamed }: { entries: readonly JournalRow[]; sealedData: string; streamed: boolean },
): Promise<void> {
  const guard = sql.fragment`exists (select 1 from resumed)`
  const { content_mode } = generation
  // The turn continues in the trace of the request that resumes it.
  const context = content_mode === 'full' ? sql.fragment`, trace_context = ${traceContext()}` : sql.fragment``
  const caused =
    content_mode === 'none' && isTracing()
      ? sql.fragment`, caused as (
          update generation_work set trace_context = ${traceContext()} where generation_id = ${generation.id} and ${guard})`
      : sql.fragment``
  await db.query(voidStatement`
    with resumed as (
        update generations set status = 'in_progress', handed_back = true, required_action = null, streamed = streamed or ${streamed},
          journalled = journalled + 1, last_activity_at = now(), updated_at = now()
        where id = ${generation.id} and status = 'requires_action' returning id),
      entries as (${journalInsert(generation, entries, guard)}) ${caused}
    update ${turnDataTable(content_mode)} set sealed = ${sealedData} ${context} where generation_id = ${generation.id} and ${guard}`)
}

/** Stores the recalled knowledge of a turn. Returns false if the claim was lost. */
export async function storeKnowledge(
  db: Queryable,
  generation: Pick<GenerationRow, 'id' | 'attempt' | 'content_mode'>,
  sealedData: string,
  knowledge: Knowledge,
): Promise<boolean> {
  const stored = generation.content_mode === 'full' ? knowledge : null
  const { rowCount } = await db.query(voidStatement`
    with owned as (
      update generations set knowledge = ${jsonb(stored)}
      where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress' returning id)
    update ${turnDataTable(generation.content_mode)} set sealed = ${sealedData}
    where generation_id in (select id from owned)`)
  return rowCount === 1
}

/** Reassigns the turns of an end user. By generations_actor. */
export const moveTurnsOfActor = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(voidStatement`update generations set actor_id = ${to} where actor_id = ${from}`)

/** Returns the memory entries written by a generation, oldest first, at most 100. By memory_entries_generation. */
export const listMemoryEntriesOfTurn = (db: Queryable, id: string): Promise<readonly MemoryEntryRow[]> =>
  db.any(memoryEntryKind.sql`
    select ${memoryEntryKind.columns} from memory_entries t where t.generation_id = ${id}
    order by t.created_at, t.id limit 100`)

/** Merges the results of memory rules, by rule id, in one statement, so that concurrent results are not lost. */
export const addExtraction = (
  db: Queryable,
  id: string,
  extraction: NonNullable<GenerationRow['extraction']>,
): Promise<unknown> =>
  db.query(voidStatement`
    update generations set extraction = coalesce(extraction, '{}') || ${jsonb(extraction)}, updated_at = now()
    where id = ${id} and content_redacted_at is null`)

/** Makes a turn the first member of a chain. */
export const joinChain = (db: Queryable, id: string, chainId: string) =>
  db.query(voidStatement`update generations set chain_id = ${chainId} where id = ${id} and chain_id is null`)

/** Merges keys into the metadata in one statement, so that concurrent patches of different keys are not lost. */
export const mergeMetadata = (db: Queryable, id: string, metadata: object): Promise<GenerationRow> =>
  db.one(generationKind.sql`
    update generations t set metadata = coalesce(t.metadata, '{}') || ${jsonb(metadata)}, updated_at = now()
    where t.id = ${id} returning ${generationKind.columns}`)

/** Returns the generations of traces, oldest first. By generations_trace. */
export const listGenerationsOfTraces = (
  db: Queryable,
  traceIds: readonly string[],
): Promise<readonly GenerationRow[]> =>
  db.any(generationKind.sql`
    select ${generationKind.columns} from generations t where t.trace_id = any(${sql.array([...traceIds], 'text')})
    order by t.created_at, t.id`)

/** Lists the turns among some that have not settled. By primary key. */
export const listActiveTurns = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from generations where id = any(${sql.array([...ids], 'text')}) and status not in ('completed', 'failed')`)

const turnSizeRow = sql.type(z.object({ turns: z.int(), bytes: z.int() }))

/** Returns the number of turns `t` of a condition, at most `limit`, and the bytes of their texts as they are stored. */
export const sizeOfTurns = (db: Queryable, turns: Fragment, limit: number): Promise<{ turns: number; bytes: number }> =>
  db.one(turnSizeRow`
    select count(*) as turns, coalesce(sum(t.bytes), 0)::bigint as bytes from (
      select coalesce(pg_column_size(t.input), 0) + coalesce(pg_column_size(t.output), 0) as bytes
      from generations t where ${turns} limit ${limit}) t`)
