import type { Making } from '../../core/api/version-archive.ts'
import { versioned } from '../../core/api/versioned.ts'
import type { Tx } from '../../core/db/write.ts'
import { requireValid } from './check.ts'
import { isSameStructure } from './definition.ts'
import {
  type Definition,
  definitionFields,
  type OrchestrationRow,
  orchestrationKind,
  orchestrationVersions,
} from './model.ts'

/** Orchestrations as they are written: a graph that runs otherwise is the next version. */
export const versionedGraphs = versioned<OrchestrationRow, Definition>({
  kind: orchestrationKind,
  archive: orchestrationVersions,
  fields: definitionFields,
  same: isSameStructure,
  check: requireValid,
})

/**
 * Writes the graph with which a module drives work of its own, as the version that the module says: a new orchestration, or
 * the next version of the one that it has. It has no routes, and no author: what starts its runs names the definition.
 */
export async function putManaged(
  tx: Tx,
  id: string | null,
  values: Pick<OrchestrationRow, 'project_id' | 'name' | 'version'> & { managed_by: string; definition: Definition },
  making: Making,
): Promise<OrchestrationRow> {
  const { definition, ...named } = values
  const row =
    id === null
      ? await orchestrationKind.insert(tx, { ...named, description: null, ...definition })
      : await orchestrationKind.update(tx, id, { name: named.name, version: named.version, ...definition })
  await versionedGraphs.keep(tx, row, making)
  return row
}
