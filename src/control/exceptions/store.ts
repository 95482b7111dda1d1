import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { type ExceptionRow, exceptionKind } from './model.ts'

/** A new exception with its dedup key; `detail` is JSON text. */
export type ExceptionReport = Pick<
  ExceptionRow,
  | 'id'
  | 'project_id'
  | 'kind'
  | 'severity'
  | 'title'
  | 'orchestration_run_id'
  | 'node_id'
  | 'agent_id'
  | 'guardrail_version'
> & { detail: string | null; dedup_key: string | null; occurrences: number }

/**
 * Inserts exceptions in one statement, or increments the count of the unresolved exception with the same key (unique
 * index exceptions_dedup). Keys must be distinct and sorted, so that concurrent statements do not deadlock.
 * @returns the current rows; a new row has the id of its report
 */
export const upsertExceptions = (
  db: Queryable,
  reports: readonly ExceptionReport[],
): Promise<readonly ExceptionRow[]> =>
  db.any(exceptionKind.sql`
    insert into exceptions as t (id, project_id, severity, kind, title, detail, dedup_key, occurrence_count,
      orchestration_run_id, node_id, agent_id, guardrail_version)
    select f.id, f.project_id, f.severity, f.kind, f.title, f.detail::json, f.dedup_key, f.occurrences,
      f.orchestration_run_id, f.node_id, f.agent_id, f.guardrail_version
    from json_to_recordset(${JSON.stringify(reports)}::json) as f (id text, project_id text, severity text, kind text,
      title text, detail text, dedup_key text, occurrences bigint, orchestration_run_id text, node_id text, agent_id text,
      guardrail_version text)
    on conflict (project_id, dedup_key) where status <> 'resolved' do update
      set occurrence_count = t.occurrence_count + excluded.occurrence_count, detail = excluded.detail,
        last_seen_at = now(), updated_at = now()
    returning ${exceptionKind.columns}`)

/** Acknowledges an open exception; null if it is not open. */
export const acknowledgeOpen = (db: Queryable, id: string, userId: string): Promise<ExceptionRow | null> =>
  db.maybeOne(exceptionKind.sql`
    update exceptions t set status = 'acknowledged', acknowledged_by = ${userId}, updated_at = now()
    where t.id = ${id} and t.status = 'open' returning ${exceptionKind.columns}`)

/** Resolves unresolved exceptions, locking them by id. */
export const resolveExceptions = (
  db: Queryable,
  ids: readonly string[],
  { userId, note }: { userId: string; note: string | null },
): Promise<readonly ExceptionRow[]> =>
  db.any(exceptionKind.sql`
    with held as (
      select id from exceptions where id = any(${sql.array([...ids], 'text')}) order by id for update
    )
    update exceptions t set status = 'resolved', resolved_by = ${userId}, resolution_note = ${note}, updated_at = now()
    from held where t.id = held.id and t.status <> 'resolved' returning ${exceptionKind.columns}`)

/** Resolves the unresolved exception of a dedup key, without a user; null if there is none (index exceptions_dedup). */
export const resolveByDedupKey = (db: Queryable, projectId: string, key: string): Promise<ExceptionRow | null> =>
  db.maybeOne(exceptionKind.sql`
    update exceptions t set status = 'resolved', updated_at = now()
    where t.project_id = ${projectId} and t.dedup_key = ${key} and t.status <> 'resolved' returning ${exceptionKind.columns}`)

/** Lists exceptions by id that meet a condition on the alias `t`. */
export const listExceptionsById = (
  db: Queryable,
  ids: readonly string[],
  where: Fragment = sql.fragment`true`,
): Promise<readonly ExceptionRow[]> =>
  db.any(exceptionKind.sql`
    select ${exceptionKind.columns} from exceptions t where t.id = any(${sql.array([...ids], 'text')}) and ${where}`)
