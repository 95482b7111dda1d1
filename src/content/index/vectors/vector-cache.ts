import { LRUCache } from 'lru-cache'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type KnownVectors, type NewVectors, readNewVectors, type Scan } from './store.ts'
import { type VectorMemory, vectorMemory } from './vector-memory.ts'

/**
 * Cache of recently compared vectors in the process: reading 400 vectors of 1,024 dimensions costs the database 7 ms of
 * processor time and the process 6 ms. The database still determines which vectors exist, are visible, and have
 * changed.
 */
type VectorCache = {
  vectors: Map<number, Entry>
  /** Blocks of vectors; the least recently used block is evicted with all its vectors. */
  blocks: LRUCache<Block, Block>
  filling: Block | null
  /** Server run to which `written_in` refers. */
  server: string
  /** Number of invalidations. */
  rewrites: number
  memory: VectorMemory
}

/** A cached vector: the transaction that wrote it, and its block and offset. */
type Entry = { written_in: string; ref_id: string; container_id: string; block: Block; at: number }

/** Consecutive vectors of one length, their IDs, and the number of searches that have pinned the block. */
type Block = { values: Float32Array; length: number; ids: number[]; readers: number }

/** A row and the cosine of one of its segments. */
export type ScoredRow = { ref_id: string; container_id: string; cosine: number }

const BLOCK_BYTES = 1_048_576
/** Memory of an entry in addition to its vector. */
const ENTRY_BYTES = 256
const UNUSED_MS = 600_000

const vectorCache = processSingleton((services): VectorCache => {
  const memory = vectorMemory(services)
  const measure = () => {
    memory.setVectors(blocks, blocks.calculatedSize)
  }
  const vectors: VectorCache['vectors'] = new Map()
  const blocks: VectorCache['blocks'] = new LRUCache({
    maxSize: Math.max(1, memory.limit),
    sizeCalculation: bytesOf,
    ttl: UNUSED_MS,
    ttlAutopurge: true,
    updateAgeOnGet: true,
    onInsert: measure,
    dispose: block => {
      for (const id of block.ids) if (vectors.get(id)?.block === block) vectors.delete(id)
    },
    disposeAfter: measure,
  })
  return { vectors, blocks, filling: null, server: '', rewrites: 0, memory }
})

const capacityOf = ({ values, length }: Block): number => values.length / length

const bytesOf = (block: Block): number => block.values.byteLength + ENTRY_BYTES * capacityOf(block)

/** Evicts vectors until `bytes` bytes are free; returns false if that is impossible. */
export const evictUntilFree = (services: Services, bytes: number): boolean => evictBlocks(vectorCache(services), bytes)

/** @param evicted receives the evicted blocks */
function evictBlocks({ blocks, memory }: VectorCache, bytes: number, evicted: (Block | undefined)[] = []): boolean {
  if (memory.vectorLimit < bytes) return false
  while (memory.free < bytes) {
    // Vectors of other cells are not evicted.
    if (blocks.size === 0) return false
    evicted.push(blocks.pop())
  }
  return true
}

/** Vectors that a search requests, with their cached entries. */
export type PinnedVectors = KnownVectors & {
  entries: readonly (Entry | undefined)[]
  blocks: ReadonlySet<Block>
  rewrites: number
}

/** Returns the cosines of cached vectors, without checking whether they are current and visible. */
export function scoreCachedOnly(
  services: Services,
  ids: readonly number[],
  query: Float32Array,
): Map<number, ScoredRow> {
  const { vectors } = vectorCache(services)
  const scores = new Map<number, ScoredRow>()
  for (const id of ids) {
    const entry = vectors.get(id)
    if (!entry) continue
    const { ref_id, container_id, block, at } = entry
    scores.set(id, { ref_id, container_id, cosine: cosineAt(block.values, at, query) })
  }
  return scores
}

/** Removes rewritten vectors from the cache, and prevents active searches from caching vectors they read before. */
export function invalidateVectors(services: Services, ids: Iterable<number>): void {
  const cache = vectorCache(services)
  for (const id of ids) cache.vectors.delete(id)
  cache.rewrites++
}

/** Pins cached vectors in memory until they are passed to `scoreCached`, once. */
export function pinVectors(services: Services, ids: readonly number[]): PinnedVectors {
  const { vectors, server, rewrites } = vectorCache(services)
  const entries = ids.map(id => vectors.get(id))
  const blocks = new Set(entries.flatMap(entry => entry?.block ?? []))
  for (const block of blocks) block.readers++
  return { ids, entries, blocks, written_in: entries.map(entry => entry?.written_in ?? '0'), server, rewrites }
}

/**
 * Scores vectors by their cached and changed values, and caches the changed ones.
 * @returns row and cosine by ID; null for rows hidden by the filter; no element for deleted rows
 */
export function scoreCached(
  services: Services,
  { ids, entries, blocks, rewrites }: PinnedVectors,
  changes: NewVectors,
  query: Float32Array,
): Map<number, ScoredRow | null> {
  const cache = vectorCache(services)
  if (changes.length > 0 && changes[0].server !== cache.server) {
    cache.blocks.clear()
    cache.server = changes[0].server
  }
  const scores = new Map<number, ScoredRow | null>()
  const changedIds = new Set(changes.map(row => row.id))
  const used = new Set<Block>()
  for (let index = 0; index < ids.length; index++) {
    const entry = entries[index]
    if (!entry || changedIds.has(ids[index])) continue
    const { ref_id, container_id, block, at } = entry
    scores.set(ids[index], { ref_id, container_id, cosine: cosineAt(block.values, at, query) })
    used.add(block)
  }
  for (const block of used) cache.blocks.get(block)
  for (const block of blocks) block.readers--
  const scratch = { values: new Float32Array(query.length), at: 0 }
  for (const { id, ref_id, container_id, written_in, vec } of changes) {
    if (ref_id === null || container_id === null || written_in === null) continue
    if (vec === null) {
      scores.set(id, null)
      continue
    }
    const allocated =
      rewrites === cache.rewrites ? allocateVector(cache, id, { written_in, ref_id, container_id }, query.length) : null
    const { values, at } = allocated ?? scratch
    Buffer.from(values.buffer, at * Float32Array.BYTES_PER_ELEMENT).write(vec, 'base64')
    scores.set(id, { ref_id, container_id, cosine: cosineAt(values, at, query) })
  }
  return scores
}

/** Scores vectors by ID, reading those that are not cached; see `scoreCached`. One round trip. */
export async function scoreIds(
  services: Services,
  db: Queryable,
  { ids, query, filter }: { ids: readonly number[]; query: Float32Array; filter: Scan['filter'] },
): Promise<Map<number, ScoredRow | null>> {
  const pinned = pinVectors(services, ids)
  return scoreCached(services, pinned, await readNewVectors(db, pinned, filter), query)
}

/** Allocates cache memory for a vector; returns null if the cache is full. */
function allocateVector(
  cache: VectorCache,
  id: number,
  row: Omit<Entry, 'block' | 'at'>,
  length: number,
): { values: Float32Array; at: number } | null {
  const block = allocateBlock(cache, length)
  if (!block) return null
  const at = block.ids.length * length
  block.ids.push(id)
  cache.vectors.set(id, { ...row, block, at })
  return { values: block.values, at }
}

function allocateBlock(cache: VectorCache, length: number): Block | null {
  const { blocks, filling } = cache
  if (filling?.length === length && filling.ids.length < capacityOf(filling) && blocks.has(filling)) return filling
  const capacity = Math.floor(BLOCK_BYTES / length / Float32Array.BYTES_PER_ELEMENT)
  const bytes = capacity * (length * Float32Array.BYTES_PER_ELEMENT + ENTRY_BYTES)
  const evicted: (Block | undefined)[] = []
  if (!evictBlocks(cache, bytes, evicted)) return null
  // Allocating external memory for every block would trigger repeated full collections. A block whose search failed
  // keeps its reader and is left to the garbage collector.
  const reused = evicted.find(block => block?.values.length === capacity * length && block.readers === 0)
  const block = { values: reused?.values ?? new Float32Array(capacity * length), length, ids: [], readers: 0 }
  blocks.set(block, block)
  cache.filling = block
  return block
}

/** Returns the dot product of `vector` and the values from `at` on, as four sums for instruction-level parallelism. */
export function cosineAt(values: Float32Array, at: number, vector: Float32Array): number {
  let first = 0
  let second = 0
  let third = 0
  let fourth = 0
  let index = 0
  for (; index + 3 < vector.length; index += 4) {
    first += values[at + index] * vector[index]
    second += values[at + index + 1] * vector[index + 1]
    third += values[at + index + 2] * vector[index + 2]
    fourth += values[at + index + 3] * vector[index + 3]
  }
  for (; index < vector.length; index++) first += values[at + index] * vector[index]
  return first + second + (third + fourth)
}
