import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { type ToolRow, toolKind } from './model.ts'

const typed = sql.type(z.strictObject({ id: z.string(), type: z.string() }))

/** The types of tools of a project by their ids. By the primary key. */
export async function toolTypes(
  db: Queryable,
  projectId: string,
  ids: readonly string[],
): Promise<Map<string, string>> {
  const rows = await db.any(typed`
    select id, type from tools where project_id = ${projectId} and id = any(${sql.array([...new Set(ids)], 'text')})`)
  return new Map(rows.map(({ id, type }) => [id, type]))
}

/** Tools of a project by their ids. By the primary key. */
export const toolsOfIds = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`
    select ${toolKind.columns} from tools t
    where t.project_id = ${projectId} and t.id = any(${sql.array([...new Set(ids)], 'text')})`)

/** The tools of a project, oldest first. By tools_project. */
export const toolsOf = (db: Queryable, projectId: string): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`select ${toolKind.columns} from tools t where t.project_id = ${projectId} order by t.id`)
