import { type Graph, graphOf } from '#automation/orchestrations/definition/graph.ts'
import { type GraphDefinition, orchestrationVersions } from '#automation/orchestrations/definition/model.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { versionCache } from '#core/resources/version-cache.ts'

/** Graph that a run executes, with the schema of its input. */
export type PinnedGraph = { graph: Graph; input_schema: object | null }

const graphs = versionCache(
  orchestrationVersions,
  64 * 1024 * 1024,
  (definition: GraphDefinition): PinnedGraph => ({
    graph: graphOf(definition),
    input_schema: definition.input_schema ?? null,
  }),
)

/** Returns the graph of an orchestration version; cached, since versions never change. Null if it was deleted. */
export const loadPinnedGraph = (
  services: Services,
  db: Queryable,
  { orchestration_id, orchestration_version }: { orchestration_id: string; orchestration_version: number },
): Promise<PinnedGraph | null> => graphs(services, db, orchestration_id, orchestration_version)
