import { z } from 'zod'
import type { Values } from '../../core/api/kind.ts'
import { invalidateOnCommit, NotifiedCache } from '../../core/db/notified-cache.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type MemoryStoreRow, memoryStoreKind } from './model.ts'

const CHANNEL = 'muster_memory'
const MAX_AGE_MS = 60_000

/** Of a project with more stores none is known by itself. */
const MOST_STORES = 20

const found = sql.type(
  z.object({ project_id: z.string(), id: z.string(), valid_count: z.int(), marked_count: z.int() }),
)

/** How many memories hold in a store, and how many of them are of end users, as of some time in the last minute. */
type Sizes = { valid_count: number; marked_count: number }

/** The stores of a project by their ids; null where they are many. */
export type Stores = { any: boolean; sizes: ReadonlyMap<string, Sizes> | null }

/**
 * Which memory stores projects have: searches of projects without any leave memories out, and how much of a project a search
 * sees decides how it is made. By memory_stores_project.
 */
const presence = processSingleton(
  ({ notifications, pool }: Services) =>
    new NotifiedCache<Stores>(notifications, {
      channel: CHANNEL,
      maxAgeMs: MAX_AGE_MS,
      load: async projects => {
        const stores = await pool.any(found`
          select p.id as project_id, s.id, s.valid_count, s.marked_count
          from unnest(${sql.array(projects, 'text')}) p (id) cross join lateral (
            select * from memory_stores s where s.project_id = p.id limit ${MOST_STORES + 1}
          ) s`)
        const byProject = Map.groupBy(stores, ({ project_id }) => project_id)
        return projects.map(project => {
          const mine = byProject.get(project) ?? []
          return {
            any: mine.length > 0,
            sizes: mine.length > MOST_STORES ? null : new Map(mine.map(row => [row.id, row])),
          }
        })
      },
    }),
  cache => cache.close(),
)

/** The stores of a project. No statement where this process knows them. */
export const storesOf = async (services: Services, project: string): Promise<Stores> => presence(services).get(project)

/** Whether those of nobody, in some stores, are most of the memories of a project. Of unknown stores that is not known. */
export function areMost({ sizes }: Stores, ids: readonly string[] | null): boolean {
  if (!sizes) return false
  let all = 0
  let seen = 0
  for (const [id, { valid_count, marked_count }] of sizes) {
    all += valid_count
    if (ids === null || ids.includes(id)) seen += valid_count - marked_count
  }
  return 2 * seen >= all
}

/** Adds a store; searches of its project cover memories from then on. */
export function insertStore(tx: Tx, values: Values<MemoryStoreRow> & { project_id: string }): Promise<MemoryStoreRow> {
  invalidateOnCommit(tx, CHANNEL, values.project_id)
  return memoryStoreKind.insert(tx, values)
}
