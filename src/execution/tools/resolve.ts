import { isIdOf } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { grantingShares } from '../shares/grants.ts'
import type { Callable } from './call-types.ts'
import { type ToolRow, toolKind } from './model.ts'
import { toolsOfAnyProject } from './store.ts'

/** A tool as a project calls it: its own, or one that another project shares with it. */
export type ResolvedTool = ToolRow & Pick<Callable, 'consumer'>

/** Tools that a project may call, by their ids, and the ids of those that exist in other projects and are not shared with it. */
export type ResolvedTools = { tools: Map<string, ResolvedTool>; denied: ReadonlySet<string> }

/**
 * Tools that a project may call, by their ids: its own, and those that are shared with it, whose `consumer` says by which
 * share. Ids that name no such tool are absent. One statement for tools of its own, another one for those of others. Ask
 * right before the call and keep nothing: shares end at any time.
 * @param hold in a transaction that writes a reference: keeps the shares from being given up until it ends
 */
export const resolveSharedTools = async (
  db: Queryable,
  projectId: string,
  toolIds: readonly string[],
  hold = false,
): Promise<Map<string, ResolvedTool>> => (await resolveTools(db, projectId, toolIds, hold)).tools

/** The same, with what is there and may not be called. */
export async function resolveTools(
  db: Queryable,
  projectId: string,
  toolIds: readonly string[],
  hold = false,
): Promise<ResolvedTools> {
  const ids = [...new Set(toolIds)].filter(id => isIdOf(toolKind, id))
  if (ids.length === 0) return { tools: new Map(), denied: new Set() }
  const found = await toolsOfAnyProject(db, ids)
  const tools = new Map<string, ResolvedTool>(
    found.filter(({ project_id }) => project_id === projectId).map(tool => [tool.id, tool]),
  )
  const others = found.filter(({ project_id }) => project_id !== projectId)
  const shares = await grantingShares(
    db,
    'tool',
    projectId,
    others.map(({ id }) => id),
    hold,
  )
  for (const tool of others) {
    const share = shares.get(tool.id)
    if (share?.publisher_project_id === tool.project_id)
      tools.set(tool.id, { ...tool, consumer: { project_id: projectId, share } })
  }
  return { tools, denied: new Set(others.map(({ id }) => id).filter(id => !tools.has(id))) }
}

/** The same for one tool; null when the project may not call it. */
export const resolveSharedTool = async (
  db: Queryable,
  projectId: string,
  toolId: string,
): Promise<ResolvedTool | null> => (await resolveSharedTools(db, projectId, [toolId])).get(toolId) ?? null
