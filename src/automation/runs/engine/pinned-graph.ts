import { versionCache } from '../../../core/api/version-cache.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { Services } from '../../../core/process/services.ts'
import { type Graph, graphOf } from '../../orchestrations/graph.ts'
import type { GraphDefinition } from '../../orchestrations/model.ts'

/** The graph that a run executes, and what its input has to satisfy. */
export type PinnedGraph = { graph: Graph; input_schema: object | null }

const graphs = versionCache({
  table: 'orchestration_versions',
  owner: 'orchestration_id',
  most: 64 * 1024 * 1024,
  make: (definition: GraphDefinition): PinnedGraph => ({
    graph: graphOf(definition),
    input_schema: definition.input_schema ?? null,
  }),
})

/** A version of an orchestration, which never changes: kept by the process. Null when it is gone. */
export const pinnedGraph = (
  services: Services,
  db: Queryable,
  { orchestration_id, orchestration_version }: { orchestration_id: string; orchestration_version: number },
): Promise<PinnedGraph | null> => graphs(services, db, orchestration_id, orchestration_version)
