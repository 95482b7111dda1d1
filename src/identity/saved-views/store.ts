import { countStatement, idStatement, type Queryable } from '#core/db/sql.ts'

/**
 * Locks a user, whose saved views are then created one after another, and counts the saved views of a project. By the primary
 * key and saved_views_name.
 */
export async function lockAndCount(db: Queryable, userId: string, projectId: string): Promise<number> {
  await db.query(idStatement`select id from users where id = ${userId} for no key update`)
  return db.oneFirst(countStatement`
    select count(*) as count from saved_views where user_id = ${userId} and project_id = ${projectId}`)
}

/** Whether a project exists; it is not deleted before the transaction ends. By the primary key. */
export const holdsProject = (db: Queryable, id: string): Promise<boolean> =>
  db.exists(idStatement`select id from projects where id = ${id} for key share`)
