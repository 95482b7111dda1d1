import { z } from 'zod'
import { idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'

/** The orchestrations of a project that have routes of their own, oldest first. By orchestrations_project. */
export const orchestrationIdsOf = (db: Queryable, projectId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from orchestrations where project_id = ${projectId} and managed_by is null order by created_at, id`)

/** Makes an orchestration invisible that is to be deleted once its runs are. By the primary key. */
export const markDeleted = (db: Queryable, id: string) =>
  db.query(voidStatement`update orchestrations set managed_by = 'deletion' where id = ${id}`)

/** Deletes an orchestration with its versions and its runs, unless it is marked. By the primary key. */
export const deleteUnmarked = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from orchestrations where id = ${id} and managed_by is distinct from 'deletion'`)

/** Deletes one that is marked. By the primary key. */
export const deleteMarked = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from orchestrations where id = ${id} and managed_by = 'deletion'`)

const marked = sql.type(z.strictObject({ id: z.string(), project_id: z.string() }))

/** Orchestrations that are marked. By orchestrations_deletion. */
export const markedOrchestrations = (db: Queryable, limit: number) =>
  db.any(marked`select id, project_id from orchestrations where managed_by = 'deletion' order by id limit ${limit}`)
