import { setImmediate } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import type { Queryable } from '#core/db/sql.ts'
import { codeBits, hammingDistances } from './codes.ts'
import {
  type CodedRows,
  type CodeScope,
  fetchCodes,
  type KnownVectors,
  type NewVectors,
  openCodeCursor,
  readChangesSince,
  type Scan,
  type ScanSnapshot,
} from './store.ts'
import { evictUntilFree, invalidateVectors } from './vector-cache.ts'
import { vectorMemory } from './vector-memory.ts'

/**
 * Cached codes of a frequently searched project. Comparing 100,000 codes takes 3 ms in memory and 50 ms of processor
 * time in the database. Every search reads the codes of transactions that `snapshot` did not see, so that it sees all
 * commits before its start, like a scan. Concurrent searches each merge the rows they read: after the last one, every
 * row of its snapshot is cached.
 */
export type CachedCodes = ScanSnapshot & {
  scope: CodeScope
  /** IDs of vectors; 0 for deleted ones. Longer than `rows`, with capacity for new rows. */
  ids: Float64Array
  /** Codes of the rows, `bytes` bytes each. */
  codes: Uint8Array
  bytes: number
  rows: number
  /** Whether the last search found hidden or deleted candidates. */
  hides: boolean
}

type CodeCache = {
  codes: LRUCache<string, CachedCodes>
  /** Scanned scopes: `once`; or `settled` if their codes are being loaded or did not fit. */
  scanned: LRUCache<string, 'once' | 'settled'>
  /** Active and queued loads. */
  loading: Promise<void>
}

/**
 * A scope scanned twice within this time is cached, and evicted when it is not searched for this time. A scope that
 * does not fit is retried after this time; it never evicts another one, so that two scopes do not evict each other
 * repeatedly.
 */
const SCOPE_TTL_MS = 600_000
/** Maximum capacity for new rows, all of which a single search may have to merge. */
const MAX_NEW_ROWS = 10_000
/** Rows processed per slice, in 0.1 ms. */
const SLICE = 4096
/** Maximum time between yields to the event loop. */
const YIELD_MS = 1

const codeCache = processSingleton((services): CodeCache => {
  const memory = vectorMemory(services)
  const measure = () => {
    memory.setCodes(codes, codes.calculatedSize)
  }
  const codes: CodeCache['codes'] = new LRUCache({
    maxSize: Math.max(1, memory.limit),
    sizeCalculation: ({ ids, codes }) => ids.byteLength + codes.byteLength,
    ttl: SCOPE_TTL_MS,
    ttlAutopurge: true,
    updateAgeOnGet: true,
    onInsert: measure,
    disposeAfter: measure,
  })
  return { codes, scanned: new LRUCache({ max: 1000, ttl: SCOPE_TTL_MS }), loading: Promise.resolve() }
})

const keyOf = ({ project, space, source }: CodeScope): string => `${project} ${space.id} ${source}`

/**
 * Returns the capacity for codes: the rows plus a tenth and a thousand new ones. When it is exhausted, all codes are
 * loaded again in the background, without deleted rows.
 */
const capacityFor = (rows: number): number => rows + Math.min(MAX_NEW_ROWS, Math.ceil(rows / 10) + 1000)

/** Returns the cached codes of a scope as of their last refresh. */
export const findCachedCodes = (services: Services, scope: CodeScope): CachedCodes | undefined =>
  codeCache(services).codes.get(keyOf(scope))

/** Runs one statement in a separate transaction with the settings of a scan. */
export type RunStatement = <T>(send: (db: Queryable) => Promise<T>) => Promise<T>

/** Extent of codes when a search compared them; concurrent searches may merge more rows. */
export type CodeSnapshot = Pick<CachedCodes, 'snapshot' | 'rows'>

export const codeSnapshot = ({ snapshot, rows }: CachedCodes): CodeSnapshot => ({ snapshot, rows })

/**
 * Merges the codes committed since a snapshot. One round trip.
 * @param known vectors that are candidates among the cached codes
 * @returns changes of these vectors, and the merged rows; null if the codes are outdated and were removed from the
 *   cache
 */
export async function refreshCodes(
  services: Services,
  runStatement: RunStatement,
  codes: CachedCodes,
  { since, known, filter }: { since: CodeSnapshot; known: KnownVectors; filter: Scan['filter'] },
): Promise<{ vectors: NewVectors; rows: readonly number[] } | null> {
  const limit = codes.ids.length - since.rows + 1
  const changes = await runStatement(db =>
    readChangesSince(db, codes.scope, { snapshot: since.snapshot, limit }, known, filter),
  )
  // Transaction IDs are not comparable across servers, nor across restarts, which may have restored a backup.
  const rows =
    changes.server === codes.server && changes.codes.ids.length < limit ? await mergeCodes(codes, changes.codes) : null
  if (rows) {
    codes.snapshot = changes.snapshot
    if (rows.some(row => row < since.rows)) invalidateVectors(services, changes.codes.ids)
    return { vectors: changes.vectors, rows }
  }
  evictCodes(services, codes)
  return null
}

/** Removes codes from the cache; the next scan of their scope loads them again. */
export function evictCodes(services: Services, codes: CachedCodes): void {
  const { codes: cached, scanned } = codeCache(services)
  const key = keyOf(codes.scope)
  if (cached.peek(key) !== codes) return
  cached.delete(key)
  scanned.set(key, 'once')
}

/**
 * Records the scan of a cacheable scope. After the second one, its codes are loaded in the background, one scope at a
 * time, so that loads use one connection and never exceed the memory limit.
 */
export function recordScan(services: Services, scope: CodeScope): void {
  if (services.config.KNOWLEDGE_CODE_CACHE_BYTES === 0) return
  const cache = codeCache(services)
  const key = keyOf(scope)
  const previous = cache.scanned.get(key)
  if (!previous) cache.scanned.set(key, 'once')
  if (previous !== 'once') return
  cache.scanned.set(key, 'settled')
  cache.loading = cache.loading
    .then(() => loadCodes(services, scope))
    .catch(error => {
      services.log.warn({ err: error, project_id: scope.project }, 'vector code cache load failed')
    })
}

async function loadCodes(services: Services, scope: CodeScope): Promise<void> {
  const { codes: cached, scanned } = codeCache(services)
  const bytes = codeBits(scope.space.dimensions) / 8
  const codes = await inTransaction(services.pool, async db => {
    const { count, ...snapshot } = await openCodeCursor(db, scope)
    const capacity = capacityFor(count)
    if (!evictUntilFree(services, capacity * (Float64Array.BYTES_PER_ELEMENT + bytes))) return null
    const loaded: CachedCodes = {
      ...snapshot,
      scope,
      ids: new Float64Array(capacity),
      codes: new Uint8Array(capacity * bytes),
      bytes,
      rows: 0,
      hides: false,
    }
    for (let part = await fetchCodes(db); part.ids.length > 0; part = await fetchCodes(db))
      append(loaded, part.ids, part.codes)
    return loaded
  })
  if (!codes) return
  invalidateVectors(services, codes.ids.subarray(0, codes.rows))
  cached.set(keyOf(scope), codes)
  // Searches may have filled the free memory during the load.
  evictUntilFree(services, 0)
  scanned.delete(keyOf(scope))
}

/** Merges new codes, each row once; returns their rows, or null if the capacity is exhausted. */
async function mergeCodes(codes: CachedCodes, changes: CodedRows): Promise<number[] | null> {
  if (changes.ids.length === 0) return []
  const merged: number[] = []
  const codeAt = (index: number) => changes.codes.subarray(index * codes.bytes, (index + 1) * codes.bytes)
  const indexes = new Map(changes.ids.map((id, index) => [id, index]))
  const minId = changes.ids.reduce((left, right) => Math.min(left, right))
  const replace = (from: number, to: number) => {
    for (let row = from; row < to; row++) {
      if (codes.ids[row] < minId) continue
      const index = indexes.get(codes.ids[row])
      if (index === undefined) continue
      codes.codes.set(codeAt(index), row * codes.bytes)
      indexes.delete(codes.ids[row])
      merged.push(row)
    }
  }
  // Existing rows: replaced vectors, and rows that concurrent searches have merged until now.
  const rows = codes.rows
  await forEachSlice(rows, replace)
  replace(rows, codes.rows)
  if (codes.rows + indexes.size > codes.ids.length) return null
  for (const [id, index] of indexes) {
    merged.push(codes.rows)
    append(codes, [id], codeAt(index))
  }
  return merged
}

function append(codes: CachedCodes, ids: readonly number[], bytes: Uint8Array): void {
  codes.ids.set(ids, codes.rows)
  codes.codes.set(bytes, codes.rows * codes.bytes)
  codes.rows += ids.length
}

/** Processes rows in slices and yields to the event loop in between. */
async function forEachSlice(rows: number, each: (from: number, to: number) => void): Promise<void> {
  let since = performance.now()
  for (let from = 0; from < rows; from += SLICE) {
    if (performance.now() - since > YIELD_MS) {
      await setImmediate()
      since = performance.now()
    }
    each(from, Math.min(rows, from + SLICE))
  }
}

/** Distance of deleted rows. */
const DELETED = 65_535

/** Returns the rows whose codes differ least from the code of a query, unordered; ties at the limit by position. */
export async function nearestCodes(
  { ids, codes, rows: count }: CachedCodes,
  queryCode: Uint8Array,
  limit: number,
): Promise<number[]> {
  const distances = new Uint16Array(count)
  /** Number of rows by distance. */
  const histogram = new Uint32Array(queryCode.length * 8 + 1)
  await forEachSlice(count, (from, to) => {
    hammingDistances(codes, queryCode, distances, { from, to })
    for (let row = from; row < to; row++) {
      if (ids[row] === 0) distances[row] = DELETED
      else histogram[distances[row]]++
    }
  })
  let bound = 0
  let below = 0
  while (bound < histogram.length && below + histogram[bound] <= limit) below += histogram[bound++]
  let remaining = limit - below
  const nearest: number[] = []
  await forEachSlice(count, (from, to) => {
    for (let row = from; row < to; row++)
      if (distances[row] < bound || (distances[row] === bound && remaining-- > 0)) nearest.push(row)
  })
  return nearest
}

/** Marks rows as deleted. */
export function evictRows({ ids }: CachedCodes, rows: readonly number[]): void {
  for (const row of rows) ids[row] = 0
}
