import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ProjectRow, projectKind, settingNames } from './model.ts'
import { lockAgainstInserts } from './store.ts'

/** Principal of a clone, for copies that run with permissions or contain secrets. */
export type CloneContext = { services: Services; caller: Caller }

/** Copies one kind of configuration into another project. */
export type Cloneable = {
  /** Plural kind name, used in `include`. */
  name: string
  /** Kinds of later modules to which its rows refer: if they are included too, they are copied first. */
  after?: readonly string[]
  /**
   * Copies the rows of a project and records in `ids` the ID of each copy by the ID of its original. References to rows
   * that were copied before are mapped through `ids`. Never copies secret values, keys, content or history.
   */
  copy(tx: Tx, from: string, to: string, ids: Map<string, string>, by: CloneContext): Promise<void>
}

/** Kinds of configuration that clones can include; copied in module order unless `after` requires otherwise. */
export const cloneables = extensionPoint<Cloneable>({
  name: 'cloneables',
  folder: 'identity/projects',
  description: 'Copies the configuration of one kind to the clone of a project',
})

export const cloneableNames = (): string[] => cloneables.all().map(entry => entry.name)

/**
 * Creates a project with the settings, tags and included configuration of another, whose configuration is locked
 * against changes and inserts.
 * @returns the project, and the ID of each copy by the ID of its original
 * @throws RESOURCE_NOT_FOUND
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
  const created = await projectKind.insert(tx, { ...settings, tags, name })
  const ids = new Map<string, string>()
  const remaining = new Set(cloneables.all().filter(entry => include.includes(entry.name)))
  const copy = async (entry: Cloneable) => {
    if (!remaining.delete(entry)) return
    for (const other of [...remaining]) if (entry.after?.includes(other.name)) await copy(other)
    await entry.copy(tx, from, created.id, ids, by)
  }
  for (const entry of [...remaining]) await copy(entry)
  const route = original.default_model_route_id && ids.get(original.default_model_route_id)
  const guardrail_ids = original.guardrail_ids.flatMap(id => ids.get(id) ?? [])
  const references = {
    ...(guardrail_ids.length > 0 && { guardrail_ids }),
    ...(route && { default_model_route_id: route }),
  }
  const project = Object.keys(references).length > 0 ? await projectKind.update(tx, created.id, references) : created
  return { made: project, ids: Object.fromEntries(ids) }
}
