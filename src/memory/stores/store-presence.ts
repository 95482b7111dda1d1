import { z } from 'zod'
import type { Values } from '#core/api/kind.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { invalidateOnCommit, NotifiedCache } from '#core/db/notified-cache.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type MemoryStoreRow, memoryStoreKind } from './model.ts'

const CHANNEL = 'muster_memory'
const MAX_AGE_MS = 60_000

/** Maximum number of stores per project whose sizes are cached. */
const MAX_STORES = 20

const sizeRow = sql.type(
  z.object({ project_id: z.string(), id: z.string(), valid_count: z.int(), marked_count: z.int() }),
)

/** Current memories of a store, and current memories of end users, at most a minute old. */
type StoreSize = { valid_count: number; marked_count: number }

/** Memory stores of a project. `sizes`: by store ID; null for more than MAX_STORES stores. */
export type StorePresence = { any: boolean; sizes: ReadonlyMap<string, StoreSize> | null }

/**
 * Cache of the memory stores of projects. Searches skip memories of projects without stores, and choose the vector
 * search by the visible share of a project. Index memory_stores_project.
 */
const presenceCache = processSingleton(
  ({ notifications, pool }: Services) =>
    new NotifiedCache<StorePresence>(notifications, {
      channel: CHANNEL,
      maxAgeMs: MAX_AGE_MS,
      load: async projects => {
        const stores = await pool.any(sizeRow`
          select p.id as project_id, s.id, s.valid_count, s.marked_count
          from unnest(${sql.array(projects, 'text')}) p (id) cross join lateral (
            select * from memory_stores s where s.project_id = p.id limit ${MAX_STORES + 1}
          ) s`)
        const byProject = Map.groupBy(stores, ({ project_id }) => project_id)
        return projects.map(project => {
          const rows = byProject.get(project) ?? []
          return {
            any: rows.length > 0,
            sizes: rows.length > MAX_STORES ? null : new Map(rows.map(row => [row.id, row])),
          }
        })
      },
    }),
  cache => cache.close(),
)

/** Returns the stores of a project, cached in the process. */
export const findStorePresence = async (services: Services, project: string): Promise<StorePresence> =>
  presenceCache(services).get(project)

/**
 * Whether memories without an end user in the given stores are at least half of the memories of a project; false if the
 * sizes are not cached.
 */
export function areMajority({ sizes }: StorePresence, ids: readonly string[] | null): boolean {
  if (!sizes) return false
  let total = 0
  let unowned = 0
  for (const [id, { valid_count, marked_count }] of sizes) {
    total += valid_count
    if (ids === null || ids.includes(id)) unowned += valid_count - marked_count
  }
  return 2 * unowned >= total
}

/** Inserts a store and invalidates the cache, so that searches of the project include memories. */
export function insertStore(tx: Tx, values: Values<MemoryStoreRow> & { project_id: string }): Promise<MemoryStoreRow> {
  invalidateOnCommit(tx, CHANNEL, values.project_id)
  return memoryStoreKind.insert(tx, values)
}
