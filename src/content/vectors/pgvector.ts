import { z } from 'zod'
import { ConfigError } from '../../config.ts'
import { type Queryable, rawFragment, sql, voidStatement } from '../../core/db/sql.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { entityMailbox } from '../../core/jobs/queue.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { currentSpace, type Space } from '../embeddings/space.ts'
import { bitType } from './store.ts'

/**
 * The extension pgvector, where the server has it: an HNSW index over the same codes, one a space, that
 * finds candidates without reading all codes of a project. Nobody but the administrator of the server installs extensions.
 */

/** Older ones cannot go on where a filter has thrown out what the index found first. */
const LEAST_VERSION = [0, 8]
const KNOWN_MS = 30_000
const BUILD_EVERY_SECONDS = 300

const indexName = (spaceId: number): string => `knowledge_vectors_hnsw_${spaceId}`

const isNewEnough = (version: string | null): boolean => {
  const [major = 0, minor = 0] = (version ?? '0').split('.').map(Number)
  return major > LEAST_VERSION[0] || (major === LEAST_VERSION[0] && minor >= LEAST_VERSION[1])
}

const version = sql.type(z.object({ extversion: z.string() }))
const state = sql.type(z.object({ indisvalid: z.boolean() }))
const name = sql.type(z.object({ relname: z.string() }))
const one = sql.type(z.object({ '?column?': z.int() }))

const installedVersion = (db: Queryable): Promise<string | null> =>
  db.maybeOneFirst(version`select extversion from pg_extension where extname = 'vector'`)

/**
 * Refuses to start where KNOWLEDGE_VECTOR_INDEX demands the extension and the database lacks it.
 * @throws ConfigError
 */
export async function requireVectorIndex({ config, pool }: Services): Promise<void> {
  if (config.KNOWLEDGE_VECTOR_INDEX !== 'pgvector' || isNewEnough(await installedVersion(pool))) return
  throw new ConfigError(
    'KNOWLEDGE_VECTOR_INDEX',
    `pgvector needs the extension vector ${LEAST_VERSION.join('.')} or newer in the database; \`auto\` does without it`,
  )
}

const known = processSingleton(() => new Map<number, { valid: boolean; until: number }>())

/** Whether the index of a space is complete; asked of the database every 30 seconds at most. */
export async function hasIndex(services: Services, space: Pick<Space, 'id'>): Promise<boolean> {
  if (services.config.KNOWLEDGE_VECTOR_INDEX === 'scan') return false
  const spaces = known(services)
  const found = spaces.get(space.id)
  if (found && found.until > performance.now()) return found.valid
  const valid = (await indexState(services.pool, space.id)) === true
  spaces.set(space.id, { valid, until: performance.now() + KNOWN_MS })
  return valid
}

/** Null where there is no index; false while it is built, or when a build was broken off. */
const indexState = (db: Queryable, spaceId: number): Promise<boolean | null> =>
  db.maybeOneFirst(state`
    select i.indisvalid from pg_index i
    where i.indexrelid = to_regclass(${indexName(spaceId)}) and i.indrelid = 'knowledge_vectors'::regclass`)

/**
 * Builds the index of the current space, concurrently, when the extension is there and the index is not; drops what a
 * broken build left, and the indexes of spaces that have no vectors any more. Returns whether an index was built.
 */
export async function buildVectorIndex(services: Services): Promise<boolean> {
  const { config, log, pool } = services
  if (config.KNOWLEDGE_VECTOR_INDEX === 'scan' || !isNewEnough(await installedVersion(pool))) return false
  const space = await currentSpace(services)
  if (!space) return false
  return pool.connect(async connection => {
    // A build takes as long as it takes, and it cannot run in a transaction that would hold the setting.
    await connection.query(voidStatement`set statement_timeout = 0`)
    try {
      await dropUnused(connection, space.id)
      const state = await indexState(connection, space.id)
      if (state === true) return false
      if (state === false) {
        if (await isBuilding(connection)) return false
        await connection.query(
          voidStatement`drop index concurrently if exists ${sql.identifier([indexName(space.id)])}`,
        )
      }
      const started = performance.now()
      await connection.query(voidStatement`
        create index concurrently ${sql.identifier([indexName(space.id)])} on knowledge_vectors
        using hnsw ((code::${bitType(space.dimensions)}) bit_hamming_ops) where space_id = ${rawFragment(String(space.id))}`)
      known(services).delete(space.id)
      log.info({ space: space.id, ms: Math.round(performance.now() - started) }, 'vector index built')
      return true
    } finally {
      await connection.query(voidStatement`reset statement_timeout`)
    }
  })
}

/** A worker that was taken for dead may still be at it. */
const isBuilding = (db: Queryable): Promise<boolean> =>
  db.exists(one`select 1 from pg_stat_progress_create_index where relid = 'knowledge_vectors'::regclass`)

/** Reads the table only where another space has an index. */
async function dropUnused(db: Queryable, current: number): Promise<void> {
  const names = await db.anyFirst(name`
    select c.relname from pg_class c join pg_index i on i.indexrelid = c.oid
    join embedding_spaces s on c.relname = 'knowledge_vectors_hnsw_' || s.id
    where i.indrelid = 'knowledge_vectors'::regclass and s.id <> ${current}
      and not exists (select 1 from knowledge_vectors v where v.space_id = s.id)`)
  for (const name of names) await db.query(voidStatement`drop index concurrently if exists ${sql.identifier([name])}`)
}

/** One build at a time in the whole deployment. */
const buildQueue = entityMailbox('vector.build_index', {
  message: z.object({}),
  concern: 'ingestion',
  key: () => 'vectors',
  retry: { limit: 0 },
})

/** Builds the index; a build has no end that could be known, so its lease is renewed while it lasts. */
export const indexHandler = handler(buildQueue, { concurrency: 1 }, (_message, { services }) =>
  buildVectorIndex(services),
)

export const indexSchedule = schedule('build vector index', BUILD_EVERY_SECONDS, buildQueue, {})
