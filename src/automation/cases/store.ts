import { z } from 'zod'
import { MAX_PAGE_BYTES } from '#core/api/lists.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import {
  type CasePrincipal,
  type CaseRow,
  caseKind,
  type EvidenceRow,
  evidenceKind,
  type LinkRow,
  linkKind,
  type TimelineRow,
} from './model.ts'

const numberRow = sql.type(z.object({ number: z.int() }))

/** Allocates the next `count` case numbers of a project and returns the last. By the primary key. */
export const allocateNumbers = (db: Queryable, projectId: string, count: number): Promise<number> =>
  db.oneFirst(numberRow`
    insert into case_numbers as n (project_id, last) values (${projectId}, ${count}::integer)
    on conflict (project_id) do update set last = n.last + excluded.last returning n.last as number`)

/** Locks an external id against concurrent creates until the transaction ends. */
export const lockExternalId = (db: Queryable, projectId: string, externalId: string) =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${`case ${projectId} ${externalId}`}, 0))`)

/** Returns the case with an external id, locked against deletion. Unique index cases_external_id. */
export const findCaseByExternalId = (db: Queryable, projectId: string, externalId: string): Promise<CaseRow | null> =>
  db.maybeOne(caseKind.sql`
    select ${caseKind.columns} from cases t where t.project_id = ${projectId} and t.external_id = ${externalId}
    for key share of t`)

export type NewTimelineEntry = Omit<TimelineRow, 'created_at'>

/** Returns the CTE that appends timeline entries in the order of their ids, which one process generates. */
export const timelineInsert = (entries: readonly NewTimelineEntry[], guard: Fragment): Fragment => sql.fragment`
  insert into case_timeline (id, project_id, case_id, kind, principal_kind, principal_id, playbook_execution_id, step_key,
    data, bytes)
  select e.id, e.project_id, e.case_id, e.kind, e.principal_kind, e.principal_id, e.playbook_execution_id, e.step_key,
    e.data, e.bytes
  from json_to_recordset(${JSON.stringify(entries)}::json) as e (id text, project_id text, case_id text,
    kind text, principal_kind text, principal_id text, playbook_execution_id text, step_key text, data json, bytes integer)
  where ${guard} order by e.id`

export type NewEvidence = Omit<EvidenceRow, 'created_at' | 'withdrawn_at' | 'withdrawn_reason'>

/** Inserts evidence of a case and raises its count. Requires the row lock. */
export const insertEvidence = (
  db: Queryable,
  caseId: string,
  pieces: readonly NewEvidence[],
): Promise<readonly EvidenceRow[]> =>
  db.any(evidenceKind.sql`
    with counted as (
      update cases set evidence_count = evidence_count + ${pieces.length}, updated_at = now() where id = ${caseId})
    insert into case_evidence as t (id, project_id, case_id, name, kind, content, file_id, url, sha256,
      playbook_execution_id, step_key, generation_id, captured_by, bytes)
    select e.id, e.project_id, e.case_id, e.name, e.kind, nullif(e.content::text, 'null')::json, e.file_id, e.url, e.sha256,
      e.playbook_execution_id, e.step_key, e.generation_id, e.captured_by, e.bytes
    from json_to_recordset(${JSON.stringify(pieces)}::json) as e (id text, project_id text, case_id text, name text,
      kind text, content json, file_id text, url text, sha256 text, playbook_execution_id text, step_key text,
      generation_id text, captured_by jsonb, bytes integer)
    returning ${evidenceKind.columns}`)

/** Marks evidence as withdrawn. */
export const withdrawEvidence = (db: Queryable, id: string, reason: string): Promise<EvidenceRow> =>
  db.one(evidenceKind.sql`
    update case_evidence t set withdrawn_at = now(), withdrawn_reason = ${reason} where t.id = ${id}
    returning ${evidenceKind.columns}`)

/** Erases the content of evidence from turns. The hash remains. Index case_evidence_generation. */
export const eraseTurnEvidence = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update case_evidence set content = null, bytes = 0
    where generation_id = any(${sql.array([...generationIds], 'text')}) and content is not null returning id`)

/** Inserts a link. Null if it exists. */
export const insertLink = (
  db: Queryable,
  link: Pick<LinkRow, 'id' | 'project_id' | 'case_id' | 'type' | 'target_id'> & { created_by: CasePrincipal | null },
): Promise<LinkRow | null> =>
  db.maybeOne(linkKind.sql`
    insert into case_links as t (id, project_id, case_id, type, target_id, created_by)
    values (${link.id}, ${link.project_id}, ${link.case_id}, ${link.type}, ${link.target_id}, ${jsonb(link.created_by)})
    on conflict (case_id, type, target_id) do nothing returning ${linkKind.columns}`)

/** Returns the existing link of a case to a target. Unique index on (case_id, type, target_id). */
export const requireLink = (db: Queryable, caseId: string, type: string, targetId: string): Promise<LinkRow> =>
  db.one(linkKind.sql`
    select ${linkKind.columns} from case_links t
    where t.case_id = ${caseId} and t.type = ${type} and t.target_id = ${targetId}`)

/** Returns the ids that exist in a table and belong to a project. By its primary key. */
export const filterExistingIds = (db: Queryable, table: string, projectId: string, ids: readonly string[]) =>
  db.anyFirst(idStatement`
    select t.id from ${sql.identifier([table])} t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)

const movedCountRow = sql.type(z.object({ evidence: z.int() }))

/**
 * Moves timeline, evidence and links to another case, dropping duplicate links. Requires both row locks. Returns the
 * number of moved pieces of evidence.
 */
export async function moveCaseContents(db: Queryable, fromId: string, intoId: string): Promise<number> {
  const { evidence } = await db.one(movedCountRow`
    with timeline as (update case_timeline set case_id = ${intoId} where case_id = ${fromId}),
      moved as (
        update case_links l set case_id = ${intoId} where l.case_id = ${fromId}
          and not exists (select from case_links o where o.case_id = ${intoId} and o.type = l.type
            and o.target_id = l.target_id)
          and not (l.type = 'case' and l.target_id = ${intoId})),
      evidence as (update case_evidence set case_id = ${intoId} where case_id = ${fromId} returning id),
      given as (
        update cases set evidence_count = evidence_count + (select count(*) from evidence), updated_at = now()
        where id = ${intoId}),
      left_without as (update cases set evidence_count = 0 where id = ${fromId})
    select count(*)::int as evidence from evidence`)
  await db.query(voidStatement`delete from case_links where case_id = ${fromId}`)
  return evidence
}

/** Text size of the large columns of a case, in bytes. */
export const caseBytes = sql.fragment`(octet_length(t.fields::text) + coalesce(octet_length(t.description), 0))`

/** Changes or clears the actor of all its cases. Returns their ids in order. Index cases_actor. */
export async function replaceCaseActor(db: Queryable, fromId: string, toId: string | null): Promise<readonly string[]> {
  const ids = await db.anyFirst(idStatement`select id from cases where actor_id = ${fromId} order by id for update`)
  if (ids.length > 0)
    await db.query(voidStatement`update cases set actor_id = ${toId}, updated_at = now() where actor_id = ${fromId}`)
  return ids
}

/** Returns the first of the cases, in id order, that fit the page size limit. By the primary key. */
export const listCasesWithinLimit = (db: Queryable, ids: readonly string[]): Promise<readonly CaseRow[]> =>
  db.any(caseKind.sql`
    select ${caseKind.columns} from cases t join (
      select t.id, sum(${caseBytes}) over (order by t.id) - ${caseBytes} as before from cases t
      where t.id = any(${sql.array([...ids], 'text')})) s on s.id = t.id
    where s.before < ${MAX_PAGE_BYTES}::bigint order by t.id`)

/** Inserts timeline entries in a separate statement. */
export const insertEntries = (db: Queryable, entries: readonly NewTimelineEntry[]) =>
  db.query(voidStatement`${timelineInsert(entries, sql.fragment`true`)}`)

/** Storage of a project's cases: evidence and timelines. By case_evidence_project and case_timeline_project. */
export const caseFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select coalesce((select sum(e.bytes) from case_evidence e where e.project_id = ${project}), 0)
    + coalesce((select sum(e.bytes) from case_timeline e where e.project_id = ${project}), 0)`,
})

/** Removes a deleted playbook from its cases. By cases_playbook. */
export const clearPlaybook = (db: Queryable, playbookId: string) =>
  db.query(voidStatement`update cases set playbook_id = null, updated_at = now() where playbook_id = ${playbookId}`)
