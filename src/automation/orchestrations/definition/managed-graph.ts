import type { VersionAuthor } from '#core/resources/version.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type GraphDefinition, type OrchestrationRow, orchestrationKind, orchestrationVersions } from './model.ts'

/**
 * Writes the graph with which a module drives its work, under the version number of the module: a new orchestration, or
 * the next version of `id`. It has no routes and no author; runs are bounded by the definition they are started with.
 */
export async function writeManagedGraph(
  tx: Tx,
  id: string | null,
  values: Pick<OrchestrationRow, 'project_id' | 'name' | 'version'> & {
    managed_by: string
    definition: GraphDefinition
  },
  author: VersionAuthor,
): Promise<OrchestrationRow> {
  const { definition, ...named } = values
  const row =
    id === null
      ? await orchestrationKind.insert(tx, { ...named, description: null, ...definition })
      : await orchestrationKind.update(tx, id, { name: named.name, version: named.version, ...definition })
  await orchestrationVersions.insertVersion(tx, row, author)
  return row
}
