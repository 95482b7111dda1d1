import { setImmediate } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { inTransaction } from '../../core/db.ts'
import { codeCacheBytes } from '../../core/metrics.ts'
import type { Services } from '../../core/operation.ts'
import { codeBits, differences } from './codes.ts'
import { type Coded, type CodeScope, nextCodes, openCodes, readNewCodes, type Seen } from './store.ts'

/**
 * The codes of projects that are searched again and again, kept in the process: what takes the database 50 ms of processor
 * time takes a loop over memory 10 (100,000 codes). The database still says what there is. Before each search it is asked
 * for the codes of transactions that the last look could not see, and what is found is read there: a search sees what was
 * committed before it began, as one that scans does.
 */
export type Codes = Seen & {
  scope: CodeScope
  /** Ids of vectors, in the order they were read; 0 where one is gone. There may be more room than rows. */
  ids: Float64Array
  /** The code of each row, in `words` words of 32 bits. */
  codes: Int32Array
  words: number
  rows: number
  /** False once the database has moved on too far: the codes are to be read anew. */
  current: boolean
  /** The look that is under way, and the one after it, shared by all searches that came too late for the first. */
  looking: Promise<void>
  nextLook: Promise<void> | null
}

type Cache = {
  codes: LRUCache<string, Codes>
  /** Scopes that were scanned: `once`, or `settled`: their codes are being read, or there was no room for them. */
  scanned: LRUCache<string, 'once' | 'settled'>
}

/**
 * A scope that is scanned twice within this time is kept, and dropped when it was not searched for as long. Where there is
 * no room it is tried again after it: one that is in use never makes place for another, so that two which do not fit
 * together are not read again and again.
 */
const REMEMBERED_MS = 600_000
/** New codes that one look takes in; when there are more, all are read anew, in parts and behind the searches. */
const MOST_NEW = 10_000
/** Codes that are compared before other requests get their turn; some three milliseconds. */
const SLICE = 32_768

const caches = new WeakMap<Services, Cache>()

function cacheOf(services: Services): Cache {
  const known = caches.get(services)
  if (known) return known
  const cache: Cache = {
    codes: new LRUCache<string, Codes>({
      maxSize: Math.max(1, services.config.KNOWLEDGE_CODE_CACHE_BYTES),
      sizeCalculation: ({ ids, codes }) => ids.byteLength + codes.byteLength,
      ttl: REMEMBERED_MS,
      ttlAutopurge: true,
      updateAgeOnGet: true,
      onInsert: () => codeCacheBytes.set(cache.codes.calculatedSize),
      disposeAfter: () => codeCacheBytes.set(cache.codes.calculatedSize),
    }),
    scanned: new LRUCache({ max: 1000, ttl: REMEMBERED_MS }),
  }
  caches.set(services, cache)
  return cache
}

const keyOf = ({ project, space, source }: CodeScope): string => `${project} ${space.id} ${source}`

/** Places for so many rows and some more, so that not every new one moves all. */
const roomFor = (rows: number): number => Math.ceil(rows * 1.1) + 1000

/** The codes of a scope as they are now, when this process keeps them, else null. One round trip. */
export async function cachedCodes(services: Services, scope: CodeScope): Promise<Codes | null> {
  const codes = cacheOf(services).codes.get(keyOf(scope))
  if (!codes) return null
  await look(services, codes)
  return codes.current ? codes : null
}

/** Says that a scope was scanned that is worth keeping. The second time its codes are read, behind the search. */
export function noteScan(services: Services, scope: CodeScope): void {
  if (services.config.KNOWLEDGE_CODE_CACHE_BYTES === 0) return
  const { scanned } = cacheOf(services)
  const key = keyOf(scope)
  const before = scanned.get(key)
  if (!before) scanned.set(key, 'once')
  if (before !== 'once') return
  scanned.set(key, 'settled')
  readAll(services, scope).catch(error => {
    services.log.warn({ err: error, project_id: scope.project }, 'the codes of a project could not be kept')
  })
}

async function readAll(services: Services, scope: CodeScope): Promise<void> {
  const { codes: kept, scanned } = cacheOf(services)
  const words = codeBits(scope.space.dimensions) / 32
  const codes = await inTransaction(services.pool, async db => {
    const { count, ...seen } = await openCodes(db, scope)
    const room = roomFor(count)
    if (kept.calculatedSize + room * (Float64Array.BYTES_PER_ELEMENT + 4 * words) > kept.maxSize) return null
    const read: Codes = {
      ...seen,
      scope,
      ids: new Float64Array(room),
      codes: new Int32Array(room * words),
      words,
      rows: 0,
      current: true,
      looking: Promise.resolve(),
      nextLook: null,
    }
    for (let part = await nextCodes(db); part.ids.length > 0; part = await nextCodes(db)) append(read, part)
    return read
  })
  if (!codes) return
  kept.set(keyOf(scope), codes)
  scanned.delete(keyOf(scope))
}

/** Takes in what was committed meanwhile, by a look that begins after the call. */
function look(services: Services, codes: Codes): Promise<void> {
  codes.nextLook ??= codes.looking
    .catch(() => {})
    .then(() => {
      codes.nextLook = null
      codes.looking = takeIn(services, codes)
      return codes.looking
    })
  return codes.nextLook
}

async function takeIn(services: Services, codes: Codes): Promise<void> {
  if (!codes.current) return
  const { codes: kept, scanned } = cacheOf(services)
  const key = keyOf(codes.scope)
  const news = await readNewCodes(services.pool, codes.scope, { snapshot: codes.snapshot, limit: MOST_NEW })
  // On another server, or after a restart that may have restored a backup, transactions can have other numbers.
  codes.current = news.server === codes.server && news.ids.length < MOST_NEW
  if (!codes.current) {
    if (kept.peek(key) === codes) kept.delete(key)
    scanned.set(key, 'once')
    return
  }
  codes.snapshot = news.snapshot
  const before = codes.ids
  append(codes, news)
  if (codes.ids === before || kept.peek(key) !== codes) return
  // The cache asks for a size when a value is put in.
  kept.delete(key)
  kept.set(key, codes)
}

function append(codes: Codes, { ids, codes: bytes }: Coded): void {
  const rows = codes.rows + ids.length
  if (rows > codes.ids.length) {
    const room = roomFor(rows)
    const grown = { ids: new Float64Array(room), codes: new Int32Array(room * codes.words) }
    grown.ids.set(codes.ids)
    grown.codes.set(codes.codes)
    // A search that is under way goes on with the arrays it has.
    Object.assign(codes, grown)
  }
  codes.ids.set(ids.map(Number), codes.rows)
  codes.codes.set(wordsOf(bytes), codes.rows * codes.words)
  codes.rows = rows
}

/** Bytes in words of the machine's order, which is no matter where differing bits are counted. */
const wordsOf = (bytes: Uint8Array): Int32Array =>
  new Int32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength))

/**
 * The rows whose codes differ least from the question's, in no order, and the codes of all rows.
 * @param question `codeBytes` of it
 */
export async function nearestCodes(
  { ids, codes, rows: all }: Codes,
  question: Uint8Array,
  limit: number,
): Promise<{ rows: number[]; codes: Uint8Array }> {
  const asked = wordsOf(question)
  const distances = new Uint16Array(all)
  for (let from = 0; from < all; from += SLICE) {
    if (from > 0) await setImmediate()
    differences(codes, asked, distances, { from, to: Math.min(all, from + SLICE) })
  }
  const rows = leastOf(distances, row => ids[row] !== 0, limit)
  return { rows, codes: new Uint8Array(codes.buffer) }
}

/** How many rows have each distance, of one search at a time. */
const having = new Uint32Array(65_536)

/** Indexes of the `limit` least distances among those that count, by counting how many there are of each. */
function leastOf(distances: Uint16Array, counts: (index: number) => boolean, limit: number): number[] {
  having.fill(0)
  for (let index = 0; index < distances.length; index++) if (counts(index)) having[distances[index]]++
  let bound = 0
  let below = 0
  while (bound < having.length && below + having[bound] <= limit) below += having[bound++]
  let left = limit - below
  const found: number[] = []
  for (let index = 0; index < distances.length; index++) {
    if (distances[index] > bound || !counts(index)) continue
    if (distances[index] < bound || left-- > 0) found.push(index)
  }
  return found
}

/** Ids of rows, as the statements take them. */
export const idsOf = ({ ids }: Codes, rows: readonly number[]): string[] => rows.map(row => String(ids[row]))

/** Leaves out rows whose vectors are gone from now on. */
export function forget({ ids }: Codes, rows: readonly number[]): void {
  for (const row of rows) ids[row] = 0
}
