import { z } from 'zod'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'

/**
 * Lists the IDs of orchestrations of a project that are not managed by a module, oldest first. By
 * orchestrations_project.
 */
export const listOrchestrationIds = (db: Queryable, projectId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from orchestrations where project_id = ${projectId} and managed_by is null order by created_at, id`)

/** Hides an orchestration that is deleted after its runs. By primary key. */
export const markDeleted = (db: Queryable, id: string) =>
  db.query(voidStatement`update orchestrations set managed_by = 'deletion' where id = ${id}`)

/** Deletes an orchestration with its versions and runs, unless it is marked as deleted. By primary key. */
export const deleteUnmarked = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from orchestrations where id = ${id} and managed_by is distinct from 'deletion'`)

/** Deletes an orchestration marked as deleted. By primary key. */
export const deleteMarked = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from orchestrations where id = ${id} and managed_by = 'deletion'`)

const markedRow = sql.type(z.strictObject({ id: z.string(), project_id: z.string() }))

/** Lists orchestrations marked as deleted. By orchestrations_deletion. */
export const listMarkedOrchestrations = (db: Queryable, limit: number) =>
  db.any(markedRow`select id, project_id from orchestrations where managed_by = 'deletion' order by id limit ${limit}`)
