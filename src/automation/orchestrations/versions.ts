import type { VersionAuthor } from '../../core/api/version-archive.ts'
import { versionedResource } from '../../core/api/versioned-resource.ts'
import type { Tx } from '../../core/db/writer.ts'
import { requireValidGraph } from './check.ts'
import { isSameGraph } from './definition.ts'
import {
  type GraphDefinition,
  graphFields,
  type OrchestrationRow,
  orchestrationKind,
  orchestrationVersions,
} from './model.ts'

/** Orchestrations as a versioned resource: a change in behaviour creates a version. */
export const versionedGraphs = versionedResource<OrchestrationRow, GraphDefinition>({
  kind: orchestrationKind,
  archive: orchestrationVersions,
  fields: graphFields,
  same: isSameGraph,
  check: requireValidGraph,
})

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
  await versionedGraphs.keep(tx, row, author)
  return row
}
