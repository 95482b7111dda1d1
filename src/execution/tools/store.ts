import { type Queryable, sql } from '#core/db/sql.ts'
import { PauseState } from '#identity/projects/store.ts'
import { type ToolRow, toolKind } from './model.ts'

/** Tool to call, with the pause state of its project. */
export type CalledTool = ToolRow & PauseState
const calledToolRow = sql.type(toolKind.row.extend(PauseState.shape))

/** Returns a tool with the pause state of its project, or null. Uses primary keys. */
export const findCalledTool = (db: Queryable, id: string): Promise<CalledTool | null> =>
  db.maybeOne(calledToolRow`
    select ${toolKind.columns}, p.paused_at, p.pause_reason, p.trace_content_mode
    from tools t join projects p on p.id = t.project_id where t.id = ${id}`)

/** Lists tools of any project by id. Uses the primary key. */
export const listToolsOfAnyProject = (db: Queryable, ids: readonly string[]): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`select ${toolKind.columns} from tools t where t.id = any(${sql.array([...ids], 'text')})`)

/** Lists the tools of a project, oldest first (index tools_project). */
export const listProjectTools = (db: Queryable, projectId: string): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`select ${toolKind.columns} from tools t where t.project_id = ${projectId} order by t.id`)

/** Lists tools of a project by id. Uses the primary key. */
export const listToolsById = (db: Queryable, projectId: string, ids: readonly string[]): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`
    select ${toolKind.columns} from tools t
    where t.project_id = ${projectId} and t.id = any(${sql.array([...new Set(ids)], 'text')})`)
