import { z } from 'zod'
import { type Fragment, idStatement, type Queryable, sql } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { type ProjectRow, projectKind } from './model.ts'

/** Pauses a project; null if it is already paused or deleted. Waits for starts that hold the row FOR SHARE. */
export const pauseProject = (db: Queryable, id: string, reason: string | null): Promise<ProjectRow | null> =>
  db.maybeOne(projectKind.sql`
    update projects t set paused_at = now(), pause_reason = ${reason}, updated_at = now()
    where t.id = ${id} and t.paused_at is null returning ${projectKind.columns}`)

/** Resumes a project and cancels its scheduled deletion; null if it is not paused or is deleted. */
export const resumeProject = (db: Queryable, id: string): Promise<ProjectRow | null> =>
  db.maybeOne(projectKind.sql`
    update projects t set paused_at = null, pause_reason = null, delete_at = null, updated_at = now()
    where t.id = ${id} and t.paused_at is not null returning ${projectKind.columns}`)

/** Schedules the deletion of a project and pauses it if it is not paused. */
export const scheduleDeleteDate = (db: Queryable, id: string, at: Date, reason: string): Promise<ProjectRow> =>
  db.one(projectKind.sql`
    update projects t set delete_at = ${at.toISOString()}::timestamptz, updated_at = now(),
      pause_reason = case when t.paused_at is null then ${reason}::text else t.pause_reason end,
      paused_at = coalesce(t.paused_at, now())
    where t.id = ${id} returning ${projectKind.columns}`)

/** Returns projects whose scheduled deletion is due. Index projects_delete_at. */
export const listDueDeletes = (db: Queryable, now: Date): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from projects where delete_at <= ${now.toISOString()}::timestamptz order by delete_at`)

/** Disables the statement timeout for this transaction: deleting a large project can exceed it. */
export const liftStatementTimeout = (db: Queryable) => setForTransaction(db, { statement_timeout: '0' })

/**
 * Locks the row FOR UPDATE, so that inserts into the project wait until the transaction ends. False if it is deleted.
 */
export const lockAgainstInserts = async (db: Queryable, projectId: string): Promise<boolean> =>
  (await db.maybeOneFirst(idStatement`select id from projects where id = ${projectId} for update`)) !== null

export const PauseState = z.object({
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
  trace_content_mode: z.enum(['full', 'none']),
})
/** Pause state of a project, and whether it stores content. */
export type PauseState = z.output<typeof PauseState>
const pauseStateRow = sql.type(PauseState)
const pauseColumns = sql.fragment`paused_at, pause_reason, trace_content_mode`

/** Returns the pause state under FOR SHARE: no pause commits before the transaction ends. */
export const lockPauseState = (db: Queryable, projectId: string) =>
  db.maybeOne(pauseStateRow`select ${pauseColumns} from projects where id = ${projectId} for share`)

/** Returns the pause state of a project as a jsonb expression, for statements that read a row of the project. */
export const pauseStateOf = (projectId: Fragment): Fragment => sql.fragment`(
  select to_jsonb(p) from (select ${pauseColumns} from projects where id = ${projectId}) p)`

export const findPauseState = (db: Queryable, projectId: string) =>
  db.maybeOne(pauseStateRow`select ${pauseColumns} from projects where id = ${projectId}`)

const activityRow = sql.type(z.object({ last_activity_at: z.string().nullable() }))

/** Returns the time of the newest event or audit entry. Indexes events_project, audit_entries_project. */
export const findLastActivity = (db: Queryable, projectId: string): Promise<string | null> =>
  db.oneFirst(activityRow`
    select greatest(
      (select max(created_at) from events where project_id = ${projectId}),
      (select max(created_at) from audit_entries where project_id = ${projectId})) as last_activity_at`)
