import { type Queryable, sql } from '../../core/db/sql.ts'
import { type ToolRow, toolKind } from './model.ts'

/** Tools by their ids, whatever their projects. By the primary key. */
export const toolsOfAnyProject = (db: Queryable, ids: readonly string[]): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`select ${toolKind.columns} from tools t where t.id = any(${sql.array([...ids], 'text')})`)

/** The tools of a project, oldest first. By tools_project. */
export const toolsOf = (db: Queryable, projectId: string): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`select ${toolKind.columns} from tools t where t.project_id = ${projectId} order by t.id`)

/** Tools of a project by their ids. By the primary key. */
export const toolsOfIds = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`
    select ${toolKind.columns} from tools t
    where t.project_id = ${projectId} and t.id = any(${sql.array([...new Set(ids)], 'text')})`)
