import { LRUCache } from 'lru-cache'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type KnownVectors, type NewVectors, readNewVectors, type Scan } from './store.ts'
import { type VectorMemory, vectorMemory } from './vector-memory.ts'

/**
 * The vectors that searches lately compared, kept in the process: to read 400 of 1,024 dimensions anew costs the database
 * 7 ms of processor time and the process 6. The database still says which are there, which a search may see, and which were
 * written again since.
 */
type Kept = {
  vectors: Map<number, Entry>
  /** Blocks of vectors; the one that was not used for longest goes first, with all that is in it. */
  blocks: LRUCache<Block, Block>
  filling: Block | null
  /** The run of the server that `written_in` is of. */
  server: string
  /** How often it was told that vectors were written again. */
  rewrites: number
  memory: VectorMemory
}

/** A vector as a transaction wrote it: the block it is in and where. */
type Entry = { written_in: string; ref_id: string; container_id: string; block: Block; at: number }

/** Vectors of one length, one after the other, their ids, and how many searches are going to read some of them. */
type Block = { values: Float32Array; length: number; ids: number[]; readers: number }

/** A row and the cosine of one of its segments. */
export type ScoredRow = { ref_id: string; container_id: string; cosine: number }

const BLOCK_BYTES = 1_048_576
/** What an entry takes beside its vector. */
const ENTRY_BYTES = 256
const UNUSED_MS = 600_000

const keptOf = processSingleton((services): Kept => {
  const memory = vectorMemory(services)
  const measure = () => {
    memory.vectors = blocks.calculatedSize
  }
  const vectors: Kept['vectors'] = new Map()
  const blocks: Kept['blocks'] = new LRUCache({
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

const placesOf = ({ values, length }: Block): number => values.length / length

const bytesOf = (block: Block): number => block.values.byteLength + ENTRY_BYTES * placesOf(block)

/**
 * Gives memory of vectors back until so much is free.
 * @returns whether it is
 */
export const evictUntilFree = (services: Services, bytes: number): boolean => freed(keptOf(services), bytes)

/** @param dropped takes the blocks that are no longer kept */
function freed({ blocks, memory }: Kept, bytes: number, dropped: (Block | undefined)[] = []): boolean {
  if (memory.besideCodes < bytes) return false
  while (memory.free < bytes) dropped.push(blocks.pop())
  return true
}

/** Vectors that a search asks for, with those that are kept. */
export type PinnedVectors = KnownVectors & {
  entries: readonly (Entry | undefined)[]
  blocks: ReadonlySet<Block>
  rewrites: number
}

/** How near the vectors that are kept are to a question, unless they were written again meanwhile, hidden or deleted. */
export function keptNear(services: Services, ids: readonly number[], question: Float32Array): Map<number, ScoredRow> {
  const { vectors } = keptOf(services)
  const near = new Map<number, ScoredRow>()
  for (const id of ids) {
    const entry = vectors.get(id)
    if (!entry) continue
    const { ref_id, container_id, block, at } = entry
    near.set(id, { ref_id, container_id, cosine: cosineAt(block.values, at, question) })
  }
  return near
}

/** Keeps vectors no longer that were written again, nor those that a search has read before it could see that. */
export function forgetVectors(services: Services, ids: Iterable<number>): void {
  const kept = keptOf(services)
  for (const id of ids) kept.vectors.delete(id)
  kept.rewrites++
}

/** What is kept of vectors. To be handed to `nearBy`, once: until then they stay in memory, kept or not. */
export function pinVectors(services: Services, ids: readonly number[]): PinnedVectors {
  const { vectors, server, rewrites } = keptOf(services)
  const entries = ids.map(id => vectors.get(id))
  const blocks = new Set(entries.flatMap(entry => entry?.block ?? []))
  for (const block of blocks) block.readers++
  return { ids, entries, blocks, written_in: entries.map(entry => entry?.written_in ?? '0'), server, rewrites }
}

/**
 * How near vectors are to a question, by what is kept and what the database says is new. Keeps what is new.
 * @returns the row and cosine of each; null for those that the filter hides; nothing for those that are gone
 */
export function scoreCached(
  services: Services,
  { ids, entries, blocks, rewrites }: PinnedVectors,
  news: NewVectors,
  question: Float32Array,
): Map<number, ScoredRow | null> {
  const kept = keptOf(services)
  if (news.length > 0 && news[0].server !== kept.server) {
    kept.blocks.clear()
    kept.server = news[0].server
  }
  const near = new Map<number, ScoredRow | null>()
  const isNew = new Set(news.map(row => row.id))
  const used = new Set<Block>()
  for (let index = 0; index < ids.length; index++) {
    const entry = entries[index]
    if (!entry || isNew.has(ids[index])) continue
    const { ref_id, container_id, block, at } = entry
    near.set(ids[index], { ref_id, container_id, cosine: cosineAt(block.values, at, question) })
    used.add(block)
  }
  for (const block of used) kept.blocks.get(block)
  for (const block of blocks) block.readers--
  const scratch = { values: new Float32Array(question.length), at: 0 }
  for (const { id, ref_id, container_id, written_in, vec } of news) {
    if (ref_id === null || container_id === null || written_in === null) continue
    if (vec === null) {
      near.set(id, null)
      continue
    }
    const place =
      rewrites === kept.rewrites ? placeFor(kept, id, { written_in, ref_id, container_id }, question.length) : null
    const { values, at } = place ?? scratch
    Buffer.from(values.buffer, at * Float32Array.BYTES_PER_ELEMENT).write(vec, 'base64')
    near.set(id, { ref_id, container_id, cosine: cosineAt(values, at, question) })
  }
  return near
}

/** How near vectors are to a question, as `nearBy`. One round trip. */
export async function scoreIds(
  services: Services,
  db: Queryable,
  { ids, question, filter }: { ids: readonly number[]; question: Float32Array; filter: Scan['filter'] },
): Promise<Map<number, ScoredRow | null>> {
  const asked = pinVectors(services, ids)
  return scoreCached(services, asked, await readNewVectors(db, asked, filter), question)
}

/** Where to keep a vector; null where there is no room for any. */
function placeFor(
  kept: Kept,
  id: number,
  row: Omit<Entry, 'block' | 'at'>,
  length: number,
): { values: Float32Array; at: number } | null {
  const block = blockFor(kept, length)
  if (!block) return null
  const at = block.ids.length * length
  block.ids.push(id)
  kept.vectors.set(id, { ...row, block, at })
  return { values: block.values, at }
}

function blockFor(kept: Kept, length: number): Block | null {
  const { blocks, filling } = kept
  if (filling?.length === length && filling.ids.length < placesOf(filling) && blocks.has(filling)) return filling
  const places = Math.floor(BLOCK_BYTES / length / Float32Array.BYTES_PER_ELEMENT)
  const bytes = places * (length * Float32Array.BYTES_PER_ELEMENT + ENTRY_BYTES)
  const dropped: (Block | undefined)[] = []
  if (!freed(kept, bytes, dropped)) return null
  // New memory for each block, outside the heap, would have all of the heap collected again and again. A block whose search
  // failed keeps its reader and is left to the collector.
  const reused = dropped.find(block => block?.values.length === places * length && block.readers === 0)
  const block = { values: reused?.values ?? new Float32Array(places * length), length, ids: [], readers: 0 }
  blocks.set(block, block)
  kept.filling = block
  return block
}

/** Dot product of a vector and one of as many values from `at` on; in four parts, which a processor adds at the same time. */
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
