import { setImmediate } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { inTransaction } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
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
import { evictUntilFree, forgetVectors } from './vector-cache.ts'
import { vectorMemory } from './vector-memory.ts'

/**
 * The codes of projects that are searched again and again, kept in the process: what takes the database 50 ms of processor
 * time takes a loop over memory 3 (100,000 codes). The database still says what there is: each search asks it for the codes
 * of transactions that `snapshot` could not see, so it sees what was committed before it began, as one that scans does. Searches ask at the same time and each takes in what it finds: whoever comes last, every row that its snapshot
 * saw is there.
 */
export type CachedCodes = ScanSnapshot & {
  scope: CodeScope
  /** Ids of vectors; 0 where one is gone. Longer than `rows`: new ones are taken in while there is room. */
  ids: Float64Array
  /** The code of each row, of `bytes` bytes. */
  codes: Uint8Array
  bytes: number
  rows: number
  /** Whether the last search met candidates that it may not see, or that are gone. */
  hides: boolean
}

type Cache = {
  codes: LRUCache<string, CachedCodes>
  /** Scopes that were scanned: `once`, or `settled`: their codes are being read, or there was no room for them. */
  scanned: LRUCache<string, 'once' | 'settled'>
  /** The read that is under way and those that wait for it. */
  reading: Promise<void>
}

/**
 * A scope that is scanned twice within this time is kept, and dropped when it was not searched for as long. Where there is
 * no room it is tried again after it: one that is in use never makes place for another, so that two which do not fit
 * together are not read again and again.
 */
const REMEMBERED_MS = 600_000
/** Places for new rows at most: one search may have to take them all in. */
const MOST_NEW = 10_000
/** Rows that are gone over at once, in a tenth of a millisecond. */
const SLICE = 4096
/** The event loop is let go after so long, for other requests and the search by words beside this one. */
const SLICE_MS = 1

const cacheOf = processSingleton((services): Cache => {
  const memory = vectorMemory(services)
  const measure = () => {
    memory.codes = codes.calculatedSize
  }
  const codes: Cache['codes'] = new LRUCache({
    maxSize: Math.max(1, memory.limit),
    sizeCalculation: ({ ids, codes }) => ids.byteLength + codes.byteLength,
    ttl: REMEMBERED_MS,
    ttlAutopurge: true,
    updateAgeOnGet: true,
    onInsert: measure,
    disposeAfter: measure,
  })
  return { codes, scanned: new LRUCache({ max: 1000, ttl: REMEMBERED_MS }), reading: Promise.resolve() }
})

const keyOf = ({ project, space, source }: CodeScope): string => `${project} ${space.id} ${source}`

/**
 * Places for so many rows and for a tenth and a thousand new ones. When those are taken all codes are read anew, in parts and
 * behind the searches, without the rows that are gone by then.
 */
const roomFor = (rows: number): number => rows + Math.min(MOST_NEW, Math.ceil(rows / 10) + 1000)

/** The codes of a scope, when this process keeps them: as they were when they were last followed. */
export const cachedCodes = (services: Services, scope: CodeScope): CachedCodes | undefined =>
  cacheOf(services).codes.get(keyOf(scope))

/** Sends one statement as a transaction of its own, with the settings of a scan. */
export type Alone = <T>(send: (db: Queryable) => Promise<T>) => Promise<T>

/** What codes held when a search compared them; others may take news in while it does. */
export type CodeSnapshot = Pick<CachedCodes, 'snapshot' | 'rows'>

export const codeSnapshot = ({ snapshot, rows }: CachedCodes): CodeSnapshot => ({ snapshot, rows })

/**
 * Takes in what was committed since a moment. One round trip.
 * @param known the vectors that are candidates without it
 * @returns what is new of those, and the rows whose codes were taken in; null when the codes are not as the database has
 *   them now, and were dropped
 */
export async function refreshCodes(
  services: Services,
  alone: Alone,
  codes: CachedCodes,
  { since, known, filter }: { since: CodeSnapshot; known: KnownVectors; filter: Scan['filter'] },
): Promise<{ vectors: NewVectors; rows: readonly number[] } | null> {
  const limit = codes.ids.length - since.rows + 1
  const news = await alone(db => readChangesSince(db, codes.scope, { snapshot: since.snapshot, limit }, known, filter))
  // On another server, or after a restart that may have restored a backup, transactions can have other numbers.
  const rows =
    news.server === codes.server && news.codes.ids.length < limit ? await mergeCodes(codes, news.codes) : null
  if (rows) {
    codes.snapshot = news.snapshot
    if (rows.some(row => row < since.rows)) forgetVectors(services, news.codes.ids)
    return { vectors: news.vectors, rows }
  }
  dropCodes(services, codes)
  return null
}

/** Codes that are no longer worth following; the next scan of their scope has them read anew. */
export function dropCodes(services: Services, codes: CachedCodes): void {
  const { codes: kept, scanned } = cacheOf(services)
  const key = keyOf(codes.scope)
  if (kept.peek(key) !== codes) return
  kept.delete(key)
  scanned.set(key, 'once')
}

/**
 * Says that a scope was scanned that is worth keeping. The second time its codes are read, behind the search; one scope
 * after the other, so that reads hold one connection, and never more memory than the setting allows.
 */
export function recordScan(services: Services, scope: CodeScope): void {
  if (services.config.KNOWLEDGE_CODE_CACHE_BYTES === 0) return
  const cache = cacheOf(services)
  const key = keyOf(scope)
  const before = cache.scanned.get(key)
  if (!before) cache.scanned.set(key, 'once')
  if (before !== 'once') return
  cache.scanned.set(key, 'settled')
  cache.reading = cache.reading
    .then(() => readAll(services, scope))
    .catch(error => {
      services.log.warn({ err: error, project_id: scope.project }, 'the codes of a project could not be kept')
    })
}

async function readAll(services: Services, scope: CodeScope): Promise<void> {
  const { codes: kept, scanned } = cacheOf(services)
  const bytes = codeBits(scope.space.dimensions) / 8
  const codes = await inTransaction(services.pool, async db => {
    const { count, ...seen } = await openCodeCursor(db, scope)
    const room = roomFor(count)
    if (!evictUntilFree(services, room * (Float64Array.BYTES_PER_ELEMENT + bytes))) return null
    const read: CachedCodes = {
      ...seen,
      scope,
      ids: new Float64Array(room),
      codes: new Uint8Array(room * bytes),
      bytes,
      rows: 0,
      hides: false,
    }
    for (let part = await fetchCodes(db); part.ids.length > 0; part = await fetchCodes(db))
      append(read, part.ids, part.codes)
    return read
  })
  if (!codes) return
  forgetVectors(services, codes.ids.subarray(0, codes.rows))
  kept.set(keyOf(scope), codes)
  // Searches have filled what was free while the codes were read.
  evictUntilFree(services, 0)
  scanned.delete(keyOf(scope))
}

/** Takes in new codes, each row once; returns their rows, null when there is no room. */
async function mergeCodes(codes: CachedCodes, news: CodedRows): Promise<number[] | null> {
  if (news.ids.length === 0) return []
  const taken: number[] = []
  const codeAt = (index: number) => news.codes.subarray(index * codes.bytes, (index + 1) * codes.bytes)
  const indexes = new Map(news.ids.map((id, index) => [id, index]))
  const least = news.ids.reduce((left, right) => Math.min(left, right))
  const replace = (from: number, to: number) => {
    for (let row = from; row < to; row++) {
      if (codes.ids[row] < least) continue
      const index = indexes.get(codes.ids[row])
      if (index === undefined) continue
      codes.codes.set(codeAt(index), row * codes.bytes)
      indexes.delete(codes.ids[row])
      taken.push(row)
    }
  }
  // Rows that are there: of vectors that were replaced, and what searches beside this one have taken in, up to the last moment.
  const rows = codes.rows
  await inSlices(rows, replace)
  replace(rows, codes.rows)
  if (codes.rows + indexes.size > codes.ids.length) return null
  for (const [id, index] of indexes) {
    taken.push(codes.rows)
    append(codes, [id], codeAt(index))
  }
  return taken
}

function append(codes: CachedCodes, ids: readonly number[], bytes: Uint8Array): void {
  codes.ids.set(ids, codes.rows)
  codes.codes.set(bytes, codes.rows * codes.bytes)
  codes.rows += ids.length
}

/** Goes over rows in slices and lets the event loop go in between. */
async function inSlices(rows: number, each: (from: number, to: number) => void): Promise<void> {
  let since = performance.now()
  for (let from = 0; from < rows; from += SLICE) {
    if (performance.now() - since > SLICE_MS) {
      await setImmediate()
      since = performance.now()
    }
    each(from, Math.min(rows, from + SLICE))
  }
}

/** The distance of rows that do not count. */
const GONE = 65_535

/**
 * The rows whose codes differ least from the question's, in no order: those at the limit by their place.
 * @param question `codeBytes` of it
 */
export async function nearestCodes(
  { ids, codes, rows: all }: CachedCodes,
  question: Uint8Array,
  limit: number,
): Promise<number[]> {
  const distances = new Uint16Array(all)
  /** How many rows have each distance. */
  const having = new Uint32Array(question.length * 8 + 1)
  await inSlices(all, (from, to) => {
    hammingDistances(codes, question, distances, { from, to })
    for (let row = from; row < to; row++) {
      if (ids[row] === 0) distances[row] = GONE
      else having[distances[row]]++
    }
  })
  let bound = 0
  let below = 0
  while (bound < having.length && below + having[bound] <= limit) below += having[bound++]
  let left = limit - below
  const found: number[] = []
  await inSlices(all, (from, to) => {
    for (let row = from; row < to; row++)
      if (distances[row] < bound || (distances[row] === bound && left-- > 0)) found.push(row)
  })
  return found
}

/** Leaves out rows whose vectors are gone from now on. */
export function evictRows({ ids }: CachedCodes, rows: readonly number[]): void {
  for (const row of rows) ids[row] = 0
}
