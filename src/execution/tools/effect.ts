import type { Queryable } from '../../core/db/sql.ts'
import type { Callable } from './call-types.ts'
import { type Pipeline, withToolDefaults } from './model.ts'
import { pinnedAction, readsOnly } from './platform.ts'
import { resolveSharedTools } from './resolve.ts'

/**
 * The first operation of the platform beyond reads that a call of a tool, or of a step of its pipeline, may make; null for
 * none. Pipelines that name each other are followed once each.
 * @param action the action that is called; default what the presets pin
 */
export async function effectOf(
  db: Queryable,
  tool: Callable,
  action: string | null = null,
  seen: Set<string> = new Set(),
): Promise<string | null> {
  if (tool.type === 'pipeline') return seen.has(tool.id ?? '') ? null : effectOfSteps(db, tool, seen)
  if (tool.type !== 'platform') return null
  const called = pinnedAction(tool) ?? action
  return (called === null ? tool.actions : [called])?.find(each => !readsOnly(each)) ?? null
}

async function effectOfSteps(db: Queryable, tool: Callable, seen: Set<string>): Promise<string | null> {
  const { id, project_id } = tool
  if (id !== null) seen.add(id)
  const { steps = [] } = tool.pipeline ?? ({} as Pipeline)
  const named = await resolveSharedTools(
    db,
    project_id,
    steps.flatMap(({ tool_id }) => tool_id ?? []),
  )
  for (const { tool: inline, tool_id, action } of steps) {
    const own = inline
      ? { ...withToolDefaults(inline), id: null, project_id, guardrail_ids: null }
      : named.get(tool_id as string)
    const effect = own && (await effectOf(db, own, action ?? null, seen))
    if (effect) return effect
  }
  return null
}
