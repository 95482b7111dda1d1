import type { Queryable } from '#core/db/sql.ts'
import type { Callable } from './call-types.ts'
import { type Pipeline, withToolDefaults } from './model.ts'
import { pinnedAction, readsOnly } from './platform.ts'
import { resolveSharedTools } from './resolve.ts'

/**
 * Returns the first non-read platform operation that a call of a tool, or of a step of its pipeline, may make; null for
 * none. Each pipeline is followed once, so cycles end.
 * @param action called action; default the preset one
 */
export async function effectOf(
  db: Queryable,
  tool: Callable,
  action: string | null = null,
  seen: Set<string> = new Set(),
): Promise<string | null> {
  if (tool.type === 'pipeline') return seen.has(tool.id ?? '') ? null : findStepEffect(db, tool, seen)
  if (tool.type !== 'platform') return null
  const called = pinnedAction(tool) ?? action
  return (called === null ? tool.actions : [called])?.find(each => !readsOnly(each)) ?? null
}

async function findStepEffect(db: Queryable, tool: Callable, seen: Set<string>): Promise<string | null> {
  const { id, project_id } = tool
  if (id !== null) seen.add(id)
  const { steps = [] } = tool.pipeline ?? ({} as Pipeline)
  const toolsById = await resolveSharedTools(
    db,
    project_id,
    steps.flatMap(({ tool_id }) => tool_id ?? []),
  )
  for (const { tool: inline, tool_id, action } of steps) {
    const stepTool = inline
      ? { ...withToolDefaults(inline), id: null, project_id, guardrail_ids: null }
      : toolsById.get(tool_id as string)
    const effect = stepTool && (await effectOf(db, stepTool, action ?? null, seen))
    if (effect) return effect
  }
  return null
}
