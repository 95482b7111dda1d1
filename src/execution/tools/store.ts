import { type Queryable, sql } from '../../core/db/sql.ts'
import { PauseState } from '../../identity/projects/store.ts'
import { type ToolRow, toolKind } from './model.ts'

/** A tool that is to be called, with whether its project runs. */
export type CalledTool = ToolRow & PauseState
const called = sql.type(toolKind.row.extend(PauseState.shape))

/** By the primary keys. */
export const findCalledTool = (db: Queryable, id: string): Promise<CalledTool | null> =>
  db.maybeOne(called`
    select ${toolKind.columns}, p.paused_at, p.pause_reason, p.trace_content_mode
    from tools t join projects p on p.id = t.project_id where t.id = ${id}`)

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
