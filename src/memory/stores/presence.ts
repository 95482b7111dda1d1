import { z } from 'zod'
import type { Values } from '../../core/api/kind.ts'
import { announce, NotifiedCache } from '../../core/db/notified-cache.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { type MemoryStoreRow, memoryStoreKind } from './model.ts'

const CHANNEL = 'muster_memory'
const MAX_AGE_MS = 60_000

const found = sql.type(z.object({ project_id: z.string() }))

/** Which projects have memory stores: searches of the others leave memories out. By memory_stores_project. */
const presence = perProcess(
  ({ notifications, pool }: Services) =>
    new NotifiedCache<{ any: boolean }>(notifications, {
      channel: CHANNEL,
      maxAgeMs: MAX_AGE_MS,
      load: async projects => {
        const having = await pool.anyFirst(found`
          select p.id as project_id from unnest(${sql.array(projects, 'text')}) p (id)
          where exists (select from memory_stores s where s.project_id = p.id)`)
        return projects.map(id => ({ any: having.includes(id) }))
      },
    }),
  cache => cache.close(),
)

/** Whether a project has memory stores. No statement where this process knows it. */
export async function hasStores(services: Services, project: string): Promise<boolean> {
  return (await presence(services).get(project)).any
}

/** Adds a store; searches of its project cover memories from then on. */
export function insertStore(tx: Tx, values: Values<MemoryStoreRow> & { project_id: string }): Promise<MemoryStoreRow> {
  announce(tx, CHANNEL, values.project_id)
  return memoryStoreKind.insert(tx, values)
}
