import { isIdOf } from '#core/api/kind.ts'
import type { Queryable } from '#core/db/sql.ts'
import { findGrantingShares } from '../grants/grants.ts'
import type { Callable } from './call-types.ts'
import { type ToolRow, toolKind } from './model.ts'
import { listToolsOfAnyProject } from './store.ts'

/** Tool that a project may call: its own, or a shared one. */
export type ResolvedTool = ToolRow & Pick<Callable, 'consumer'>

/** Callable tools by id, and the ids of tools in other projects that are not shared. */
export type ResolvedTools = { tools: Map<string, ResolvedTool>; denied: ReadonlySet<string> }

/**
 * Returns the tools that a project may call, by id: its own, and shared ones, whose `consumer` contains the share.
 * Other ids are absent. One statement for own tools, another for shared ones. Resolve right before a call and cache
 * nothing: shares can end at any time.
 * @param hold locks the shares against revocation until the transaction ends, for writers of references
 */
export const resolveSharedTools = async (
  db: Queryable,
  projectId: string,
  toolIds: readonly string[],
  hold = false,
): Promise<Map<string, ResolvedTool>> => (await resolveTools(db, projectId, toolIds, hold)).tools

/** Returns the tools that a project may call, and the ids of existing tools that it may not. */
export async function resolveTools(
  db: Queryable,
  projectId: string,
  toolIds: readonly string[],
  hold = false,
): Promise<ResolvedTools> {
  const ids = [...new Set(toolIds)].filter(id => isIdOf(toolKind, id))
  if (ids.length === 0) return { tools: new Map(), denied: new Set() }
  const found = await listToolsOfAnyProject(db, ids)
  const tools = new Map<string, ResolvedTool>(
    found.filter(({ project_id }) => project_id === projectId).map(tool => [tool.id, tool]),
  )
  const others = found.filter(({ project_id }) => project_id !== projectId)
  const shares = await findGrantingShares(
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

/** Returns a tool that the project may call, or null. */
export const resolveSharedTool = async (
  db: Queryable,
  projectId: string,
  toolId: string,
): Promise<ResolvedTool | null> => (await resolveSharedTools(db, projectId, [toolId])).get(toolId) ?? null
