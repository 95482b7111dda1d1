import type { EndUser } from '#control/retention/erasure.ts'
import { type Fragment, idStatement, type Queryable, sql } from '#core/db/sql.ts'

/** Bytes of the notes of a project. By session_notes_project. */
export const noteFootprint = (project: Fragment) => ({
  bytes: sql.fragment`select sum(octet_length(n.text)) from session_notes n where n.project_id = ${project}`,
})

/** Lists notes of the sessions of an end user that were written until a time. By sessions_actor and session_notes_session. */
export const listNotesOfEndUser = (
  db: Queryable,
  { id }: Pick<EndUser, 'id'>,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select n.id from session_notes n
    where n.session_id in (select s.id from sessions s where s.actor_id = ${id}) and n.created_at <= ${until}::timestamptz
    limit ${limit}`)

/** Deletes notes and returns their ids. */
export const deleteNotes = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    delete from session_notes where id = any(${sql.array([...ids], 'text')}) returning id`)
