import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { type Queryable, sql } from '../db/sql.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Services } from '../process/services.ts'
import { Author } from './authors.ts'

const config = sql.type(z.object({ config: z.unknown(), author: Author, bytes: z.int() }))

/**
 * Versions of an archive, which never change, as a process goes by them: made of their configuration at the first use, and
 * kept. Null for one that is gone.
 * @param declaration.owner column that names the row whose versions these are
 * @param declaration.most bytes that a process keeps
 */
export function versionCache<Config, Made extends object>(declaration: {
  table: string
  owner: string
  most: number
  make: (config: Config, author: z.output<typeof Author>) => Made
}): (services: Services, db: Queryable, id: string, version: number) => Promise<Made | null> {
  const { table, owner, most, make } = declaration
  const keptOf = processSingleton(() => new LRUCache<string, Made>({ maxSize: most }))
  return async (services, db, id, version) => {
    const kept = keptOf(services)
    const key = `${id} ${version}`
    const known = kept.get(key)
    if (known) return known
    const found = await db.maybeOne(config`
      select config, author, octet_length(config::text) as bytes from ${sql.identifier([table])}
      where ${sql.identifier([owner])} = ${id} and version = ${version}`)
    if (!found) return null
    const made = make(found.config as Config, found.author)
    // What objects take beyond their text.
    kept.set(key, made, { size: 4 * found.bytes + 1 })
    return made
  }
}
