import { z } from 'zod'
import { MAX_PAGE_BYTES } from '../../core/api/lists.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
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

const numbers = sql.type(z.object({ number: z.int() }))

/** The next number of a case of a project, which stays locked; null while another transaction has it. By the primary key. */
export const lockNextNumber = (db: Queryable, projectId: string): Promise<number | null> =>
  db.maybeOneFirst(numbers`
    with free as (select project_id from case_numbers where project_id = ${projectId} for update skip locked)
    update case_numbers n set last = n.last + 1 from free where n.project_id = free.project_id returning n.last as number`)

/** Draws the next numbers of cases of a project, and returns the last of them. */
export const allocateNumbers = (db: Queryable, projectId: string, count: number): Promise<number> =>
  db.oneFirst(numbers`
    insert into case_numbers as n (project_id, last) values (${projectId}, ${count}::integer)
    on conflict (project_id) do update set last = n.last + excluded.last returning n.last as number`)

/** Keeps others from making the case of an external id until the transaction ends. */
export const lockExternalId = (db: Queryable, projectId: string, externalId: string) =>
  db.query(voidStatement`select from pg_advisory_xact_lock(hashtextextended(${`case ${projectId} ${externalId}`}, 0))`)

/** The case of an external id, kept from being deleted until the transaction ends. Unique index cases_external_id. */
export const caseOfExternalId = (db: Queryable, projectId: string, externalId: string): Promise<CaseRow | null> =>
  db.maybeOne(caseKind.sql`
    select ${caseKind.columns} from cases t where t.project_id = ${projectId} and t.external_id = ${externalId}
    for key share of t`)

/** A row of a timeline to be written. */
export type NewTimelineEntry = Omit<TimelineRow, 'created_at'>

/** Appends rows to timelines as part of another statement, in the order of their ids, which one process drew. */
export const timelineRows = (entries: readonly NewTimelineEntry[], guard: Fragment): Fragment => sql.fragment`
  insert into case_timeline (id, project_id, case_id, kind, principal_kind, principal_id, playbook_execution_id, step_key,
    data, bytes)
  select e.id, e.project_id, e.case_id, e.kind, e.principal_kind, e.principal_id, e.playbook_execution_id, e.step_key,
    e.data, e.bytes
  from json_to_recordset(${JSON.stringify(entries)}::json) as e (id text, project_id text, case_id text,
    kind text, principal_kind text, principal_id text, playbook_execution_id text, step_key text, data json, bytes integer)
  where ${guard} order by e.id`

/** Evidence to be written. */
export type NewEvidence = Omit<EvidenceRow, 'created_at' | 'withdrawn_at' | 'withdrawn_reason'>

/** Adds evidence to a case, whose row the caller holds, and counts it. */
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

/** Withdraws evidence: the row and its hash stay. */
export const withdrawEvidence = (db: Queryable, id: string, reason: string): Promise<EvidenceRow> =>
  db.one(evidenceKind.sql`
    update case_evidence t set withdrawn_at = now(), withdrawn_reason = ${reason} where t.id = ${id}
    returning ${evidenceKind.columns}`)

/** Takes the content of what turns said; its hash stays. Index case_evidence_generation. */
export const eraseEvidenceOf = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update case_evidence set content = null, bytes = 0
    where generation_id = any(${sql.array([...generationIds], 'text')}) and content is not null returning id`)

/** Links a case; null where the link is there already. */
export const insertLink = (
  db: Queryable,
  link: Pick<LinkRow, 'id' | 'project_id' | 'case_id' | 'type' | 'target_id'> & { created_by: CasePrincipal | null },
): Promise<LinkRow | null> =>
  db.maybeOne(linkKind.sql`
    insert into case_links as t (id, project_id, case_id, type, target_id, created_by)
    values (${link.id}, ${link.project_id}, ${link.case_id}, ${link.type}, ${link.target_id}, ${jsonb(link.created_by)})
    on conflict (case_id, type, target_id) do nothing returning ${linkKind.columns}`)

/** The link of a case to something. Unique index on (case_id, type, target_id). */
export const linkTo = (db: Queryable, caseId: string, type: string, targetId: string): Promise<LinkRow> =>
  db.one(linkKind.sql`
    select ${linkKind.columns} from case_links t
    where t.case_id = ${caseId} and t.type = ${type} and t.target_id = ${targetId}`)

/** Those of some ids that a table has in a project. By its primary key. */
export const existingIdsIn = (db: Queryable, table: string, projectId: string, ids: readonly string[]) =>
  db.anyFirst(idStatement`
    select t.id from ${sql.identifier([table])} t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)

const moved = sql.type(z.object({ evidence: z.int() }))

/**
 * Gives what one case has to another; links that both have stay one. The caller holds both rows. Returns how many pieces of
 * evidence it gave.
 */
export async function moveCaseContents(db: Queryable, fromId: string, intoId: string): Promise<number> {
  const { evidence } = await db.one(moved`
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

/** Bytes of what is large in a case. */
export const caseBytes = sql.fragment`(octet_length(t.fields::text) + coalesce(octet_length(t.description), 0))`

/** Has the cases of an actor name another one, or none; returns their ids in order. Index cases_actor. */
export async function moveCasesOfActor(db: Queryable, fromId: string, toId: string | null): Promise<readonly string[]> {
  const ids = await db.anyFirst(idStatement`select id from cases where actor_id = ${fromId} order by id for update`)
  if (ids.length > 0)
    await db.query(voidStatement`update cases set actor_id = ${toId}, updated_at = now() where actor_id = ${fromId}`)
  return ids
}

/** Cases of some ids, the first of them that fit into one answer. By the primary key. */
export const listCasesWithinLimit = (db: Queryable, ids: readonly string[]): Promise<readonly CaseRow[]> =>
  db.any(caseKind.sql`
    select ${caseKind.columns} from cases t join (
      select t.id, sum(${caseBytes}) over (order by t.id) - ${caseBytes} as before from cases t
      where t.id = any(${sql.array([...ids], 'text')})) s on s.id = t.id
    where s.before < ${MAX_PAGE_BYTES}::bigint order by t.id`)

/** Writes rows of timelines at once. */
export const insertEntries = (db: Queryable, entries: readonly NewTimelineEntry[]) =>
  db.query(voidStatement`${timelineRows(entries, sql.fragment`true`)}`)

/** What cases of a project take: evidence and timelines. By case_evidence_project and case_timeline_project. */
export const caseFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select coalesce((select sum(e.bytes) from case_evidence e where e.project_id = ${project}), 0)
    + coalesce((select sum(e.bytes) from case_timeline e where e.project_id = ${project}), 0)`,
})

/** A playbook goes: it is no case's default any more. By cases_playbook. */
export const clearPlaybook = (db: Queryable, playbookId: string) =>
  db.query(voidStatement`update cases set playbook_id = null, updated_at = now() where playbook_id = ${playbookId}`)
