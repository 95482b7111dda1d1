import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { Author } from '../api/authors.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { type Queryable, sql } from '../db/sql.ts'
import type { Versions } from './versioned.ts'

const configRow = sql.type(z.object({ config: z.unknown(), author: Author, bytes: z.int() }))

/**
 * Returns a lookup of immutable versions, built from their configuration on first use and cached per process. The result is
 * null if the version does not exist.
 * @param most size limit of the cache, in bytes
 */
export function versionCache<Config, Built extends object>(
  { table, owner }: Pick<Versions, 'table' | 'owner'>,
  most: number,
  make: (config: Config, author: z.output<typeof Author>) => Built,
): (services: Services, db: Queryable, id: string, version: number) => Promise<Built | null> {
  const cacheOf = processSingleton(() => new LRUCache<string, Built>({ maxSize: most }))
  return async (services, db, id, version) => {
    const cache = cacheOf(services)
    const key = `${id} ${version}`
    const cached = cache.get(key)
    if (cached) return cached
    const found = await db.maybeOne(configRow`
      select config, author, octet_length(config::text) as bytes from ${table}
      where ${sql.identifier([owner])} = ${id} and version = ${version}`)
    if (!found) return null
    const built = make(found.config as Config, found.author)
    // Objects take about four times the size of their text.
    cache.set(key, built, { size: 4 * found.bytes + 1 })
    return built
  }
}
