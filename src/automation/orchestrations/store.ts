import { identifying, type Queryable } from '../../core/db/sql.ts'

/** The orchestrations of a project that have routes of their own, oldest first. By orchestrations_project. */
export const orchestrationIdsOf = (db: Queryable, projectId: string): Promise<readonly string[]> =>
  db.anyFirst(identifying`
    select id from orchestrations where project_id = ${projectId} and managed_by is null order by created_at, id`)
