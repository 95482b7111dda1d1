import { z } from 'zod'
import { ConfigError } from '#core/base/config.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withStatementLimit } from '#core/db/pg-client.ts'
import { openPool } from '#core/db/pool.ts'
import { type Queryable, rawFragment, sql, voidStatement } from '#core/db/sql.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { currentSpace, type Space } from '../embeddings/space.ts'
import { bitType } from './store.ts'

/**
 * Optional HNSW index with the extension pgvector, one per space over the same codes, which finds candidates without
 * reading all codes of a project. Only the administrator of the server can install the extension.
 */

/** Older versions have no iterative scans, which continue when a filter excludes the first results. */
const MIN_VERSION = [0, 8]
const STATE_TTL_MS = 30_000
const BUILD_EVERY_SECONDS = 300

const indexName = (spaceId: number): string => `knowledge_vectors_hnsw_${spaceId}`

const isNewEnough = (version: string | null): boolean => {
  const [major = 0, minor = 0] = (version ?? '0').split('.').map(Number)
  return major > MIN_VERSION[0] || (major === MIN_VERSION[0] && minor >= MIN_VERSION[1])
}

const versionRow = sql.type(z.object({ extversion: z.string() }))
const indexRow = sql.type(z.object({ indisvalid: z.boolean() }))
const nameRow = sql.type(z.object({ relname: z.string() }))
const existsRow = sql.type(z.object({ '?column?': z.int() }))

/** Version of the extension, null if the database lacks it or its types are not in the search path. */
const findVersion = (db: Queryable): Promise<string | null> =>
  db.maybeOneFirst(versionRow`
    select extversion from pg_extension where extname = 'vector' and to_regtype('vector') is not null`)

/**
 * Checks at startup that the database has the extension if KNOWLEDGE_VECTOR_INDEX requires it.
 * @throws ConfigError
 */
export async function requireVectorIndex({ config, pool }: Services): Promise<void> {
  if (config.KNOWLEDGE_VECTOR_INDEX !== 'pgvector' || isNewEnough(await findVersion(pool))) return
  throw new ConfigError(
    'KNOWLEDGE_VECTOR_INDEX',
    `pgvector requires the extension vector ${MIN_VERSION.join('.')} or later in the database; \`auto\` works without it`,
  )
}

const indexStates = processSingleton(() => new Map<number, { valid: boolean; until: number }>())

/** Whether the index of a space is complete; cached for 30 seconds. */
export async function hasIndex(services: Services, space: Pick<Space, 'id'>): Promise<boolean> {
  if (services.config.KNOWLEDGE_VECTOR_INDEX === 'scan') return false
  const states = indexStates(services)
  const cached = states.get(space.id)
  if (cached && cached.until > performance.now()) return cached.valid
  const valid = (await findIndexState(services.pool, space.id)) === true
  states.set(space.id, { valid, until: performance.now() + STATE_TTL_MS })
  return valid
}

/** Returns null without an index; false while it is being built or after an aborted build. */
const findIndexState = (db: Queryable, spaceId: number): Promise<boolean | null> =>
  db.maybeOneFirst(indexRow`
    select i.indisvalid from pg_index i
    where i.indexrelid = to_regclass(${indexName(spaceId)}) and i.indrelid = 'knowledge_vectors'::regclass`)

/**
 * Builds a missing index of the current space concurrently, if the extension is installed. Drops the remains of an
 * aborted build and the indexes of spaces without vectors. Returns whether an index was built.
 */
export async function buildVectorIndex(services: Services): Promise<boolean> {
  const { config, pool } = services
  if (config.KNOWLEDGE_VECTOR_INDEX === 'scan' || !isNewEnough(await findVersion(pool))) return false
  const space = await currentSpace(services)
  if (!space) return false
  // A build has no time limit and cannot run in a transaction, which would scope the setting. A pooler would leave it to others.
  const isPooled = config.DATABASE_LISTEN_URL !== config.DATABASE_URL
  const sessions = isPooled ? await openPool({ databaseUrl: config.DATABASE_LISTEN_URL, connections: 1 }) : pool
  try {
    return await withStatementLimit(Number.POSITIVE_INFINITY, () =>
      sessions.connect(async connection => {
        await connection.query(voidStatement`set statement_timeout = 0`)
        try {
          return await buildMissing(services, connection, space)
        } finally {
          await connection.query(voidStatement`reset statement_timeout`)
        }
      }),
    )
  } finally {
    if (isPooled) await sessions.end()
  }
}

async function buildMissing(services: Services, connection: Queryable, space: Space): Promise<boolean> {
  await dropUnusedIndexes(connection, space.id)
  const state = await findIndexState(connection, space.id)
  if (state === true) return false
  if (state === false) {
    if (await isBuilding(connection)) return false
    await connection.query(voidStatement`drop index concurrently if exists ${sql.identifier([indexName(space.id)])}`)
  }
  const started = performance.now()
  await connection.query(voidStatement`
    create index concurrently ${sql.identifier([indexName(space.id)])} on knowledge_vectors
    using hnsw ((code::${bitType(space.dimensions)}) bit_hamming_ops) where space_id = ${rawFragment(String(space.id))}`)
  indexStates(services).delete(space.id)
  services.log.info({ space: space.id, ms: Math.round(performance.now() - started) }, 'vector index built')
  return true
}

/** Whether an index is being built, for example by a worker whose claim has expired. */
const isBuilding = (db: Queryable): Promise<boolean> =>
  db.exists(existsRow`select 1 from pg_stat_progress_create_index where relid = 'knowledge_vectors'::regclass`)

/** Drops indexes of other spaces without vectors. Reads the table only if another space has an index. */
async function dropUnusedIndexes(db: Queryable, current: number): Promise<void> {
  const names = await db.anyFirst(nameRow`
    select c.relname from pg_class c join pg_index i on i.indexrelid = c.oid
    join embedding_spaces s on c.relname = 'knowledge_vectors_hnsw_' || s.id
    where i.indrelid = 'knowledge_vectors'::regclass and s.id <> ${current}
      and not exists (select 1 from knowledge_vectors v where v.space_id = s.id)`)
  for (const name of names) await db.query(voidStatement`drop index concurrently if exists ${sql.identifier([name])}`)
}

/** One build at a time in the deployment. */
const buildQueue = entityMailbox('vector.build_index', {
  message: z.object({}),
  concern: 'ingestion',
  key: () => 'vectors',
  retry: { limit: 0 },
})

/** Builds the index. The duration is unbounded, so the lease is renewed during the build. */
export const indexHandler = handler(buildQueue, { concurrency: 1 }, (_message, { services }) =>
  buildVectorIndex(services),
)

export const indexSchedule = schedule('vector.build_index', BUILD_EVERY_SECONDS, buildQueue, {})
