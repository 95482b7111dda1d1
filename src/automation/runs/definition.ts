import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { type Graph, graphOf } from '../orchestrations/graph.ts'
import type { Definition } from '../orchestrations/model.ts'

/** The graph that a run executes, and what its input has to satisfy. */
export type Pinned = { graph: Graph; input_schema: object | null }

/** Bytes of graphs that a process keeps. */
const KEPT_BYTES = 64 * 1024 * 1024

const graphsOf = perProcess(() => new LRUCache<string, Pinned>({ maxSize: KEPT_BYTES }))

const config = sql.type(z.object({ config: z.custom<Definition>(), bytes: z.int() }))

/** A version of an orchestration, which never changes: kept by the process. Null when it is gone. */
export async function pinnedGraph(
  services: Services,
  db: Queryable,
  { orchestration_id, orchestration_version }: { orchestration_id: string; orchestration_version: number },
): Promise<Pinned | null> {
  const graphs = graphsOf(services)
  const key = `${orchestration_id} ${orchestration_version}`
  const kept = graphs.get(key)
  if (kept) return kept
  const found = await db.maybeOne(config`
    select config, octet_length(config::text) as bytes from orchestration_versions
    where orchestration_id = ${orchestration_id} and version = ${orchestration_version}`)
  if (!found) return null
  const pinned = { graph: graphOf(found.config), input_schema: found.config.input_schema ?? null }
  // What objects take beyond their text.
  graphs.set(key, pinned, { size: 4 * found.bytes + 1 })
  return pinned
}
