import type { Tags } from '../../core/api/record.ts'
import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import type { ProjectInput, ProjectPatch, ProjectRow } from './model.ts'

const columns = sql.fragment`t.*, t.id as project_id`

/** Adds a project; what the input leaves out takes the column's default. */
export const insertProject = (db: Queryable, id: string, input: ProjectInput): Promise<ProjectRow> =>
  db.one(sql.unsafe`
    insert into projects as t (id, name, description, max_run_depth, max_concurrent_runs, max_chain_generations,
      audit_reads_enabled, trace_content_retention_days, trace_content_mode)
    values (${id}, ${input.name}, ${input.description ?? null}, ${input.max_run_depth ?? null},
      ${input.max_concurrent_runs ?? null}, ${input.max_chain_generations ?? null}, ${input.audit_reads_enabled ?? false},
      ${input.trace_content_retention_days ?? null}, ${input.trace_content_mode ?? 'full'})
    returning ${columns}`) as Promise<ProjectRow>

/** Adds a project with the settings and tags of another. */
export const copyProject = (db: Queryable, id: string, from: string, name: string): Promise<ProjectRow> =>
  db.one(sql.unsafe`
    insert into projects as t (id, name, description, max_run_depth, max_concurrent_runs, max_chain_generations,
      audit_reads_enabled, trace_content_retention_days, trace_content_mode, tags)
    select ${id}, ${name}, description, max_run_depth, max_concurrent_runs, max_chain_generations,
      audit_reads_enabled, trace_content_retention_days, trace_content_mode, tags
    from projects where id = ${from}
    returning ${columns}`) as Promise<ProjectRow>

/** Writes the settings a patch names, in one statement; null when the project is gone. */
export function updateProject(db: Queryable, id: string, patch: ProjectPatch): Promise<ProjectRow | null> {
  const { guardrail_ids, ...plain } = patch
  const sets = Object.entries(plain)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => sql.fragment`${sql.identifier([name])} = ${value as string | number | boolean | null}`)
  if (guardrail_ids !== undefined)
    sets.push(sql.fragment`guardrail_ids = ${sql.array([...new Set(guardrail_ids ?? [])], 'text')}`)
  return db.maybeOne(sql.unsafe`
    update projects t set ${sql.join([...sets, sql.fragment`updated_at = now()`], sql.fragment`, `)}
    where t.id = ${id} returning ${columns}`) as Promise<ProjectRow | null>
}

export const setProjectTags = (db: Queryable, id: string, tags: Tags): Promise<ProjectRow> =>
  db.one(
    sql.unsafe`update projects t set tags = ${jsonb(tags)}, updated_at = now() where t.id = ${id} returning ${columns}`,
  ) as Promise<ProjectRow>

/** Pauses a running project; null when it was paused before or is gone. Waits for starts that hold the row FOR SHARE. */
export const pauseProject = (db: Queryable, id: string, reason: string | null): Promise<ProjectRow | null> =>
  db.maybeOne(sql.unsafe`
    update projects t set paused_at = now(), pause_reason = ${reason}, updated_at = now()
    where t.id = ${id} and t.paused_at is null returning ${columns}`) as Promise<ProjectRow | null>

/** Lifts a pause, and with it a deferred delete; null when the project runs or is gone. */
export const resumeProject = (db: Queryable, id: string): Promise<ProjectRow | null> =>
  db.maybeOne(sql.unsafe`
    update projects t set paused_at = null, pause_reason = null, delete_at = null, updated_at = now()
    where t.id = ${id} and t.paused_at is not null returning ${columns}`) as Promise<ProjectRow | null>

/** Sets the day of a deferred delete, pausing the project when it runs. */
export const deferDelete = (db: Queryable, id: string, at: Date, reason: string): Promise<ProjectRow> =>
  db.one(sql.unsafe`
    update projects t set delete_at = ${at.toISOString()}::timestamptz, updated_at = now(),
      pause_reason = case when t.paused_at is null then ${reason}::text else t.pause_reason end,
      paused_at = coalesce(t.paused_at, now())
    where t.id = ${id} returning ${columns}`) as Promise<ProjectRow>

/** Projects whose deferred delete is due (index projects_delete_at). */
export const dueDeletes = (db: Queryable, now: Date): Promise<readonly string[]> =>
  db.anyFirst(
    sql.unsafe`select id from projects where delete_at <= ${now.toISOString()}::timestamptz order by delete_at`,
  ) as Promise<readonly string[]>

/** Lifts the time limit of statements for this transaction: a large project takes as long as it takes. */
export const unboundedStatements = (db: Queryable): Promise<unknown> =>
  db.query(sql.unsafe`set local statement_timeout = 0`)

/** Removes the project and, by foreign keys, every row of it. */
export const deleteProject = (db: Queryable, id: string): Promise<unknown> =>
  db.query(sql.unsafe`delete from projects where id = ${id}`)

/** Whether the project runs, under FOR SHARE: no pause commits before the reader's transaction ends. */
export const lockPauseState = (
  db: Queryable,
  id: string,
): Promise<{ paused_at: string | null; pause_reason: string | null } | null> =>
  db.maybeOne(sql.unsafe`select paused_at, pause_reason from projects where id = ${id} for share`) as Promise<{
    paused_at: string | null
    pause_reason: string | null
  } | null>

/** Time of the newest event or audit entry (indexes events_project, audit_entries_project). */
export const lastActivity = (db: Queryable, id: string): Promise<string | null> =>
  db.oneFirst(sql.unsafe`
    select greatest(
      (select max(created_at) from events where project_id = ${id}),
      (select max(created_at) from audit_entries where project_id = ${id}))`) as Promise<string | null>
