import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { type ProjectRow, projectKind, settingNames } from './model.ts'
import { lockAgainstInserts } from './store.ts'

/** Who copies, for what acts in somebody's name or has a secret. */
export type CloneContext = { services: Services; caller: Caller }

/** How one kind of configuration is copied into another project. */
export type Cloneable = {
  /** What `include` calls it, a plural kind name. */
  name: string
  /** Kinds that its rows refer to, of a later area: where they are included too, they are copied before it. */
  after?: readonly string[]
  /**
   * Copies the rows of a project and notes the id of each copy under the id of its original. References to rows that
   * were copied before are followed through `ids`. Never copies values of secrets, keys, content or history.
   */
  copy(tx: Tx, from: string, to: string, ids: Map<string, string>, by: CloneContext): Promise<void>
}

/** Kinds of configuration that clones of a project can include; copied in the order of the modules, except where `after` says otherwise. */
export const cloneables = extensionPoint<Cloneable>('cloneables')

export const cloneableNames = (): string[] => cloneables.all().map(entry => entry.name)

/**
 * Adds a project with the settings, the tags and the named configuration of another, whose configuration cannot change
 * or grow meanwhile. Raises RESOURCE_NOT_FOUND.
 * @returns the project, and the id of each copy by the id of its original
 */
export async function cloneProject(
  tx: Tx,
  from: string,
  name: string,
  include: readonly string[],
  by: CloneContext,
): Promise<{ made: ProjectRow; ids: Record<string, string> }> {
  await lockAgainstInserts(tx, from)
  const { tags, ...original } = await projectKind.lock(tx, from)
  const settings = Object.fromEntries(settingNames.map(setting => [setting, original[setting]]))
  const made = await projectKind.insert(tx, { ...settings, tags, name })
  const ids = new Map<string, string>()
  const left = new Set(cloneables.all().filter(entry => include.includes(entry.name)))
  const copy = async (entry: Cloneable) => {
    if (!left.delete(entry)) return
    for (const other of [...left]) if (entry.after?.includes(other.name)) await copy(other)
    await entry.copy(tx, from, made.id, ids, by)
  }
  for (const entry of [...left]) await copy(entry)
  const route = original.default_model_route_id && ids.get(original.default_model_route_id)
  const guardrail_ids = original.guardrail_ids.flatMap(id => ids.get(id) ?? [])
  const named = { ...(guardrail_ids.length > 0 && { guardrail_ids }), ...(route && { default_model_route_id: route }) }
  const project = Object.keys(named).length > 0 ? await projectKind.update(tx, made.id, named) : made
  return { made: project, ids: Object.fromEntries(ids) }
}
