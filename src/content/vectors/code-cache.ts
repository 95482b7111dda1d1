import { setImmediate } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { inTransaction } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { codeBits, differences } from './codes.ts'
import { memoryOf } from './memory.ts'
import { type Coded, type CodeScope, nextCodes, openCodes, readNewCodes, type Seen } from './store.ts'
import { makeRoom } from './vector-cache.ts'

/**
 * The codes of projects that are searched again and again, kept in the process: what takes the database 50 ms of processor
 * time takes a loop over memory 10 (100,000 codes). The database still says what there is: each search begins by asking it
 * for the codes of transactions that `snapshot` could not see, so it sees what was committed before it began, as one that
 * scans does. Searches ask at the same time and each takes in what it finds: whoever comes last, every row that its snapshot
 * saw is there.
 */
export type Codes = Seen & {
  scope: CodeScope
  /** Ids of vectors; 0 where one is gone. Longer than `rows`: new ones are taken in while there is room. */
  ids: Float64Array
  /** The code of each row, in `words` words of 32 bits. */
  codes: Int32Array
  words: number
  rows: number
}

type Cache = {
  codes: LRUCache<string, Codes>
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
/**
 * Codes that are compared before yielding to the event loop, for other requests and the search by words beside this one:
 * not quite a millisecond.
 */
const SLICE = 8192

const cacheOf = perProcess((services): Cache => {
  const memory = memoryOf(services)
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
export const keptCodes = (services: Services, scope: CodeScope): Codes | undefined =>
  cacheOf(services).codes.get(keyOf(scope))

/**
 * Takes in what was committed since. One round trip.
 * @returns whether the codes are as the database has them now; else they were dropped
 */
export async function followCodes(services: Services, db: Queryable, codes: Codes): Promise<boolean> {
  const limit = codes.ids.length - codes.rows + 1
  const news = await readNewCodes(db, codes.scope, { snapshot: codes.snapshot, limit })
  // On another server, or after a restart that may have restored a backup, transactions can have other numbers.
  if (news.server === codes.server && news.ids.length < limit && takeIn(codes, news)) {
    codes.snapshot = news.snapshot
    return true
  }
  dropCodes(services, codes)
  return false
}

/** Codes that are no longer worth following; the next scan of their scope has them read anew. */
export function dropCodes(services: Services, codes: Codes): void {
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
export function noteScan(services: Services, scope: CodeScope): void {
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
  const words = codeBits(scope.space.dimensions) / 32
  const codes = await inTransaction(services.pool, async db => {
    const { count, ...seen } = await openCodes(db, scope)
    const room = roomFor(count)
    if (!makeRoom(services, room * (Float64Array.BYTES_PER_ELEMENT + 4 * words))) return null
    const read: Codes = {
      ...seen,
      scope,
      ids: new Float64Array(room),
      codes: new Int32Array(room * words),
      words,
      rows: 0,
    }
    for (let part = await nextCodes(db); part.ids.length > 0; part = await nextCodes(db))
      append(read, part.ids, wordsOf(part.codes))
    return read
  })
  if (!codes) return
  kept.set(keyOf(scope), codes)
  scanned.delete(keyOf(scope))
}

/** Takes in new codes, each row once; false when there is no room. 1 to 2 ms for 100,000 rows and any news. */
function takeIn(codes: Codes, news: Coded): boolean {
  if (news.ids.length === 0) return true
  const all = wordsOf(news.codes)
  const codeAt = (index: number) => all.subarray(index * codes.words, (index + 1) * codes.words)
  const indexes = new Map(news.ids.map((id, index) => [id, index]))
  // Rows that are there: of vectors that were replaced, and what a search beside this one has taken in.
  for (let row = 0; row < codes.rows; row++) {
    const index = indexes.get(codes.ids[row])
    if (index === undefined) continue
    codes.codes.set(codeAt(index), row * codes.words)
    indexes.delete(codes.ids[row])
  }
  if (codes.rows + indexes.size > codes.ids.length) return false
  for (const [id, index] of indexes) append(codes, [id], codeAt(index))
  return true
}

function append(codes: Codes, ids: readonly number[], words: Int32Array): void {
  codes.ids.set(ids, codes.rows)
  codes.codes.set(words, codes.rows * codes.words)
  codes.rows += ids.length
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

/** Leaves out rows whose vectors are gone from now on. */
export function forget({ ids }: Codes, rows: readonly number[]): void {
  for (const row of rows) ids[row] = 0
}
