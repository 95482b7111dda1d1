import { z } from 'zod'
import { type ErasedBy, isTurnHeld } from '#control/retention/erasure.ts'
import type { ExpiringProject } from '#control/retention/expire.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type GenerationRow, generationKind, Trace, type TraceRow } from '../model.ts'

const traceRow = sql.type(Trace)

/**
 * Erases the content of generations; records and earlier redaction marks are retained. A paused turn becomes failed.
 */
export async function redactGenerations(
  db: Queryable,
  ids: readonly string[],
  by: ErasedBy,
): Promise<readonly GenerationRow[]> {
  const list = sql.array([...ids], 'text')
  return db.any(generationKind.sql`
    with steps as (delete from generation_steps where generation_id = any(${list})),
      requests as (delete from step_requests where generation_id = any(${list})),
      frames as (delete from stream_frames where generation_id = any(${list})),
      work as (delete from generation_work where generation_id = any(${list})),
      hidden as (delete from generation_work_unlogged where generation_id = any(${list})),
      journal as (delete from generation_journal where generation_id = any(${list})),
      hidden_journal as (delete from generation_journal_unlogged where generation_id = any(${list})),
      spans as (
        update span_outbox set sealed_content = null where generation_id = any(${list}) and sealed_content is not null)
    update generations t set status = case when t.status = 'requires_action' then 'failed' else t.status end,
      stop_reason = case when t.status = 'requires_action' then 'error' else t.stop_reason end,
      completed_at = coalesce(t.completed_at, now()), metadata = null, error = null, input = null, output = null,
      required_action = null, abort = null, knowledge = null, extraction = null, content_redacted_at = now(),
      content_redacted_by_principal_type = ${by.type}, content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${list}) and content_redacted_at is null
    returning ${generationKind.columns}`)
}

/** Erases the errors of traces and marks the traces as redacted. */
export const redactTraces = (db: Queryable, ids: readonly string[], by: ErasedBy): Promise<readonly TraceRow[]> =>
  db.any(traceRow`
    update traces set error = null, content_redacted_at = now(), content_redacted_by_principal_type = ${by.type},
      content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${sql.array([...ids], 'text')}) and content_redacted_at is null
    returning *`)

/** Removes the error of a generation from its trace, which has the error of the last failed generation. */
export const clearTraceError = (db: Queryable, { trace_id, error }: Pick<GenerationRow, 'trace_id' | 'error'>) =>
  db.query(voidStatement`
    update traces set error = null, updated_at = now() where id = ${trace_id} and error = ${jsonb(error)}`)

const subtreesOf = (roots: readonly string[]): Fragment => sql.fragment`
  with recursive subtree as (
    select t.id from traces t where t.id = any(${sql.array([...roots], 'text')})
    union select t.id from traces t join subtree s on t.parent_trace_id = s.id)`

/** Returns the ids of traces and all their descendants. By traces_parent. */
export const listSubtree = (db: Queryable, roots: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`${subtreesOf(roots)} select id from subtree order by id`)

/** Locks traces and all their descendants and returns their ids. */
export const lockSubtree = (db: Queryable, roots: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    ${subtreesOf(roots)} select t.id from traces t where t.id in (select id from subtree) order by t.id for update`)

const PurgeState = generationKind.row.pick({ id: true, status: true, project_id: true, session_id: true })
export type PurgeState = z.output<typeof PurgeState>
const purgeStateRow = sql.type(PurgeState)

/** Returns the states of the generations of traces, oldest first. By generations_trace. */
export const listPurgeStates = (
  db: Queryable,
  traceIds: readonly string[],
  lock = false,
): Promise<readonly PurgeState[]> =>
  db.any(purgeStateRow`
    select t.id, t.status, t.project_id, t.session_id from generations t
    where t.trace_id = any(${sql.array([...traceIds], 'text')})
    order by t.created_at, t.id ${lock ? sql.fragment`for update` : sql.fragment``}`)

const TraceRoot = z.object({ id: z.string(), created_at: z.string() })
export type TraceRoot = z.output<typeof TraceRoot>
const traceRootRow = sql.type(TraceRoot)

/** Condition of a generation `g` in the tree of the root trace `t`. */
const isInTree = sql.fragment`
  g.trace_id in (select t.id union all select c.id from traces c where c.root_trace_id = t.id)`

/**
 * Condition of root traces `t` of a project with content and without activity in their trees since the cutoff. By
 * traces_kept.
 */
export const hasExpiredContent = ({ id, cutoff }: ExpiringProject): Fragment => sql.fragment`
  t.project_id = ${id} and t.parent_trace_id is null and t.content_redacted_at is null
  and t.created_at < ${cutoff}::timestamptz
  and not exists (
    select from generations g where ${isInTree}
      and (g.status in ('pending', 'in_progress') or coalesce(g.last_activity_at, g.created_at) >= ${cutoff}::timestamptz))`

/**
 * Condition of root traces `t` of a project without activity in their trees since the cutoff and without turns retained
 * by other records. By traces_project.
 */
export const isDeletable = ({ id, cutoff }: ExpiringProject): Fragment => sql.fragment`
  t.project_id = ${id} and t.parent_trace_id is null and t.created_at < ${cutoff}::timestamptz
  and not exists (
    select from generations g where ${isInTree}
      and (g.completed_at is null or coalesce(g.last_activity_at, g.created_at) >= ${cutoff}::timestamptz
        or ${isTurnHeld(sql.fragment`${cutoff}::timestamptz`)}))`

/** Returns the next root traces of a condition, oldest first. */
export const listRoots = (
  db: Queryable,
  condition: Fragment,
  after: TraceRoot | null,
  limit: number,
): Promise<readonly TraceRoot[]> =>
  db.any(traceRootRow`
    select t.id, t.created_at from traces t
    where ${condition}
      ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by t.created_at, t.id limit ${limit}`)

/** Returns a turn of locked traces that must be retained, or null. */
export const findRetainedTurn = (db: Queryable, traceIds: readonly string[], cutoff: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select g.id from generations g
    where g.trace_id = any(${sql.array([...traceIds], 'text')})
      and (g.completed_at is null or ${isTurnHeld(sql.fragment`${cutoff}::timestamptz`)}) limit 1`)

/** Deletes the generations of locked traces and returns their number. */
export const deleteTurns = async (db: Queryable, traceIds: readonly string[]): Promise<number> =>
  (await db.query(voidStatement`delete from generations where trace_id = any(${sql.array([...traceIds], 'text')})`))
    .rowCount

/**
 * Ctes with the generations of an end user as `taken`: its own, those in its conversations and in conversations it
 * wrote in, and their continuations and nested turns without either id, such as extractions of facts. By
 * generations_actor, generations_conversation, generations_initiator and generations_chain.
 */
const endUserTurnCtes = (endUser: { id: string; conversations: Fragment }): Fragment => sql.fragment`
  own as (
    select id, chain_id from generations where actor_id = ${endUser.id}
    union select id, chain_id from generations where conversation_id in (${endUser.conversations})
  ),
  taken as (
    select id from own
    union select g.id from own join generations g on g.initiator_generation_id = own.id
    union select g.id from own join generations g on g.chain_id = own.chain_id
  )`

/** Returns the next trace roots whose trees have content in generations of an end user created until a time. */
export const listRootsOfEndUser = (
  db: Queryable,
  endUser: { id: string; project_id: string; conversations: Fragment },
  { until, after, limit }: { until: string; after: string; limit: number },
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    with ${endUserTurnCtes(endUser)}
    select distinct coalesce(t.root_trace_id, t.id) as id
    from taken join generations g on g.id = taken.id join traces t on t.id = g.trace_id
    where g.created_at <= ${until}::timestamptz and g.project_id = ${endUser.project_id} and t.content_redacted_at is null
      and coalesce(t.root_trace_id, t.id) > ${after}
    order by id limit ${limit}`)

/** Subquery of the ids of all generations in trace trees that the erasure of an end user affects. */
export const turnsOfEndUser = (endUser: { id: string; conversations: Fragment }): Fragment => sql.fragment`(
  with ${endUserTurnCtes(endUser)}, trees as (
    select distinct coalesce(t.root_trace_id, t.id) as id
    from taken join generations g on g.id = taken.id join traces t on t.id = g.trace_id)
  select g.id from trees join traces t on t.id = trees.id or t.root_trace_id = trees.id join generations g on g.trace_id = t.id)`

/** Returns the pending and running generations of trace trees. */
export const listOpenTurnsOfRoots = (db: Queryable, roots: readonly string[]): Promise<readonly GenerationRow[]> =>
  db.any(generationKind.sql`
    select ${generationKind.columns} from generations t
    where t.trace_id in (
        select id from traces where id = any(${sql.array([...roots], 'text')}) or root_trace_id = any(${sql.array([...roots], 'text')}))
      and t.status in ('pending', 'in_progress') order by t.id`)
