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

/** Orchestrations as they are written: a graph that runs otherwise is the next version. */
export const versionedGraphs = versionedResource<OrchestrationRow, GraphDefinition>({
  kind: orchestrationKind,
  archive: orchestrationVersions,
  fields: graphFields,
  same: isSameGraph,
  check: requireValidGraph,
})

/**
 * Writes the graph with which a module drives work of its own, as the version that the module says: a new orchestration, or
 * the next version of the one that it has. It has no routes, and no author: what starts its runs names the definition.
 */
export async function writeManagedGraph(
  tx: Tx,
  id: string | null,
  values: Pick<OrchestrationRow, 'project_id' | 'name' | 'version'> & {
    managed_by: string
    definition: GraphDefinition
  },
  making: VersionAuthor,
): Promise<OrchestrationRow> {
  const { definition, ...named } = values
  const row =
    id === null
      ? await orchestrationKind.insert(tx, { ...named, description: null, ...definition })
      : await orchestrationKind.update(tx, id, { name: named.name, version: named.version, ...definition })
  await versionedGraphs.keep(tx, row, making)
  return row
}
