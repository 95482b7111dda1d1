import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type Queryable, sql } from '../db/sql.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Services } from '../process/services.ts'
import { Author } from './authors.ts'

const configRow = sql.type(z.object({ config: z.unknown(), author: Author, bytes: z.int() }))

/**
 * Returns a lookup of immutable versions, built from their configuration on first use and cached per process. The result is
 * null if the version does not exist.
 * @param declaration.owner column with the id of the versioned row
 * @param declaration.most size limit of the cache, in bytes
 */
export function versionCache<Config, Built extends object>(declaration: {
  table: string
  owner: string
  most: number
  make: (config: Config, author: z.output<typeof Author>) => Built
}): (services: Services, db: Queryable, id: string, version: number) => Promise<Built | null> {
  const { table, owner, most, make } = declaration
  const cacheOf = processSingleton(() => new LRUCache<string, Built>({ maxSize: most }))
  return async (services, db, id, version) => {
    const cache = cacheOf(services)
    const key = `${id} ${version}`
    const cached = cache.get(key)
    if (cached) return cached
    const found = await db.maybeOne(configRow`
      select config, author, octet_length(config::text) as bytes from ${sql.identifier([table])}
      where ${sql.identifier([owner])} = ${id} and version = ${version}`)
    if (!found) return null
    const built = make(found.config as Config, found.author)
    // Objects take about four times the size of their text.
    cache.set(key, built, { size: 4 * found.bytes + 1 })
    return built
  }
}
