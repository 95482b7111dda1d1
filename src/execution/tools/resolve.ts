import { isIdOf } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { grantingShares } from '../shares/grants.ts'
import type { Callable } from './call-model.ts'
import { type ToolRow, toolKind } from './model.ts'
import { toolsOfAnyProject } from './store.ts'

/** A tool as a project calls it: its own, or one that another project shares with it. */
export type ResolvedTool = ToolRow & Pick<Callable, 'consumer'>

/**
 * Tools that a project may call, by their ids: its own, and those that are shared with it, whose `consumer` says by which
 * share. Ids that name no such tool are absent. One statement for tools of its own, two more for others. Ask right before
 * the call and keep nothing: shares end at any time.
 * @param hold in a transaction that writes a reference: keeps the shares from being given up until it ends
 */
export async function resolveSharedTools(
  db: Queryable,
  projectId: string,
  toolIds: readonly string[],
  hold = false,
): Promise<Map<string, ResolvedTool>> {
  const ids = [...new Set(toolIds)].filter(id => isIdOf(toolKind, id))
  if (ids.length === 0) return new Map()
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
  return tools
}

/** The same for one tool; null when the project may not call it. */
export const resolveSharedTool = async (
  db: Queryable,
  projectId: string,
  toolId: string,
): Promise<ResolvedTool | null> => (await resolveSharedTools(db, projectId, [toolId])).get(toolId) ?? null
