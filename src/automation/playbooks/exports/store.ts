import { z } from 'zod'
import {
  type CaseRow,
  caseKind,
  type EvidenceRow,
  evidenceKind,
  type LinkRow,
  linkKind,
  type TimelineRow,
  timelineKind,
} from '#automation/cases/model.ts'
import type { Kind } from '#core/api/kind.ts'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type ExportRow, exportKind } from './model.ts'

/** Makes the transaction read-only with one snapshot for all its statements. */
export const useRepeatableRead = (db: Queryable) =>
  db.query(voidStatement`set transaction isolation level repeatable read, read only`)

const bytesRow = sql.type(z.object({ bytes: z.coerce.number() }))

/** Overhead of a timeline entry, evidence or link, in addition to its content. */
const ROW_BYTES = 512

/**
 * Returns the size of the timeline, evidence and links of cases, or of one execution. By case_timeline_case,
 * case_evidence_case and the unique index of links.
 */
export const snapshotBytes = (db: Queryable, caseIds: readonly string[], executionId: string | null): Promise<number> =>
  db.oneFirst(bytesRow`
    select coalesce((
        select sum(t.bytes + ${ROW_BYTES}) from case_timeline t where ${inCases(caseIds)} ${ofExecution(executionId)}), 0)
      + coalesce((
        select sum(t.bytes + ${ROW_BYTES}) from case_evidence t where ${inCases(caseIds)} ${ofExecution(executionId)}), 0)
      + (select count(*) * ${ROW_BYTES} from case_links t where ${inCases(caseIds)}) as bytes`)

const inCases = (ids: readonly string[]) => sql.fragment`t.case_id = any(${sql.array([...ids], 'text')})`

const ofExecution = (executionId: string | null) =>
  executionId === null ? sql.fragment`` : sql.fragment`and t.playbook_execution_id = ${executionId}`

/**
 * Returns the cases with timeline entries of an execution: its case and the case that this was merged into. By
 * case_timeline_execution.
 */
export const listExecutionCases = (db: Queryable, executionId: string): Promise<readonly CaseRow[]> =>
  db.any(caseKind.sql`
    select ${caseKind.columns} from cases t where t.id in (
      select case_id from case_timeline where playbook_execution_id = ${executionId}) order by t.id`)

/** By case_timeline_case. */
export const listTimeline = (
  db: Queryable,
  caseIds: readonly string[],
  executionId: string | null,
): Promise<readonly TimelineRow[]> =>
  db.any(timelineKind.sql`
    select ${timelineKind.columns} from case_timeline t where ${inCases(caseIds)} ${ofExecution(executionId)}
    order by ${executionId === null ? sql.fragment`t.seq` : sql.fragment`t.created_at, t.seq`}`)

/** By case_evidence_case. */
export const listEvidence = (
  db: Queryable,
  caseIds: readonly string[],
  executionId: string | null,
): Promise<readonly EvidenceRow[]> =>
  db.any(evidenceKind.sql`
    select ${evidenceKind.columns} from case_evidence t where ${inCases(caseIds)} ${ofExecution(executionId)}
    order by t.created_at, t.id`)

/** By the unique index on (case_id, type, target_id). */
export const listLinks = (db: Queryable, caseIds: readonly string[]): Promise<readonly LinkRow[]> =>
  db.any(linkKind.sql`
    select ${linkKind.columns} from case_links t where ${inCases(caseIds)} order by t.created_at, t.id`)

/** Lists rows of a kind in a project. By the primary key. */
export const listRowsOfKind = (db: Queryable, kind: Kind<any>, projectId: string, ids: readonly string[]) =>
  db.any(kind.sql`
    select ${kind.columns} from ${sql.identifier([kind.table])} t
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)

/** Locks and returns the exports of a case. By playbook_exports_case. */
export const lockCaseExports = (db: Queryable, caseId: string): Promise<readonly ExportRow[]> =>
  db.any(exportKind.sql`
    select ${exportKind.columns} from playbook_exports t where t.case_id = ${caseId} order by t.id for update of t`)

/** Lists the ids of expired exports after an id. By playbook_exports_expiring. */
export const listExpiredExports = (
  db: Queryable,
  now: Date,
  after: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from playbook_exports where status = 'completed' and expires_at <= ${now.toISOString()}::timestamptz and id > ${after}
    order by id limit ${limit}`)
