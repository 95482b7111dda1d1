import { Counter } from 'prom-client'
import { sendWithCommit } from '../../core/db/commit-piggyback.ts'
import { inTransaction } from '../../core/db/pool.ts'
import { setForTransaction } from '../../core/db/settings.ts'
import type { Services } from '../../core/process/services.ts'
import {
  type Alone,
  type CachedCodes,
  type CodeSnapshot,
  cachedCodes,
  codeSnapshot,
  dropCodes,
  evictRows,
  nearestCodes,
  recordScan,
  refreshCodes,
} from './code-cache.ts'
import { codeBytes, codeOf, estimateCosines } from './codes.ts'
import { hasIndex } from './pgvector.ts'
import { type Scan, type StoredVector, scanCodes, searchIndex } from './store.ts'
import { cosineAt, keptNear, pinVectors, type ScoredRow, scoreCached, scoreIds } from './vector-cache.ts'

export const vectorSearches = new Counter({
  name: 'muster_vector_searches_total',
  help: 'Searches of one source by meaning, by where their candidates came from: memory, scan, index',
  labelNames: ['by'],
  registers: [],
})

const LEAST_CANDIDATES = 400
const MOST_CANDIDATES = 2000
/**
 * Codes that are estimated anew before the candidates are chosen. Where nothing is really near the question (evenly
 * scattered vectors, short questions to a hashing embedder), the distance of codes alone puts a third of the true ten
 * behind the first 400 of 100,000. Twice as many find less than one in a hundred more, and cost twice as much. Of fewer than
 * 40,000 rows a twentieth is enough, as long as the candidates are chosen among more.
 */
const ESTIMATED = 2000
const estimatedOf = (rows: number, wanted: number): number =>
  Math.min(ESTIMATED, Math.max(Math.ceil(rows / 20), Math.ceil(1.25 * wanted)))

/** Codes that were taken in are estimated beside those that a search has chosen; all are compared again for more. */
const MOST_MERGED = 500

/** Vectors that are read at least in place of those that were gone or hidden, lest the last few take a round trip each. */
const LEAST_READ = 100

/**
 * How candidates are read: how many at first, of how many of the nearest the database is asked whether they are as they are
 * kept, and whether those that are left can be left out.
 */
type Reading = { first: number; sure: number; isEnough(estimate: number, found: readonly ScoredRow[]): boolean }

/** Estimates of cosines err by 0.028 (one standard deviation, 2,048 bits), by more than this once in millions. */
const MARGIN = 0.14

function readingOf(
  question: Float32Array,
  wanted: number,
  { sure = wanted, relevant }: { sure?: number; relevant?: number },
): Reading {
  if (relevant === undefined) return { first: wanted, sure, isEnough: () => false }
  // What a row with the question's own code is estimated at stands for a cosine of 1.
  const [one] = estimateCosines(question, codeBytes(question), [0])
  let best = -1
  let seen = 0
  return {
    first: LEAST_READ,
    sure,
    isEnough(estimate, found) {
      for (; seen < found.length; seen++) best = Math.max(best, found[seen].cosine)
      return estimate / one < Math.min(best, relevant) - MARGIN
    },
  }
}

/**
 * The rows of one source that are nearest to a question: codes by distance, the best of them by
 * estimate, the best of those by the cosines of their vectors. Sorted by cosine, then by id; every row once. Where the
 * scope holds no more rows than candidates the answer is exact.
 * @param scan.limit results that the caller wants; decides how many candidates are read
 * @param scan.sure how many of the nearest have to be there and visible; those behind them may be hidden, gone or changed, and are
 *   only good for the cosines of rows that were found otherwise. All, if it is missing
 * @param scan.relevant the cosine below which no row but the nearest matters: candidates are read in parts, and no more once
 *   what is left is estimated to be well below it and the nearest
 * @param scan.vector the question, L2-normalized
 * @param scan.whole whether all rows of the project may be found but those that are gone or not ready: its codes may be
 *   compared in the process (code-cache.ts). Of a part of a project the database finds the rows; what is hidden would take
 *   the time and the places of what may be seen
 * @throws the database's error when it takes longer than KNOWLEDGE_QUERY_TIMEOUT_MS
 */
export async function nearestRows(
  services: Services,
  {
    vector,
    limit,
    whole,
    sure,
    relevant,
    ...scope
  }: Omit<Scan, 'code'> & { vector: Float32Array; whole?: boolean; sure?: number; relevant?: number },
): Promise<ScoredRow[]> {
  const { config, pool } = services
  const wanted = Math.min(MOST_CANDIDATES, Math.max(LEAST_CANDIDATES, config.KNOWLEDGE_CANDIDATE_FACTOR * limit))
  const { projects, space, source, filter } = scope
  const reading = readingOf(vector, wanted, { sure, relevant })
  const indexed = await hasIndex(services, space)
  const keepable = whole && !indexed && projects?.length === 1 ? { project: projects[0], space, source } : null
  const kept = keepable && cachedCodes(services, keepable)
  const settings = settingsOf({ timeoutMs: config.KNOWLEDGE_QUERY_TIMEOUT_MS, indexed: indexed ? wanted : null })
  const alone: Alone = send =>
    inTransaction(pool, async db => {
      // One plan for all: both read rows by their ids or by what is new, and would take three times as long to plan as to run.
      await setForTransaction(db, { ...settings, plan_cache_mode: 'force_generic_plan' })
      return sendWithCommit(() => send(db))
    })
  // Before a connection is taken; what has come meanwhile is taken in by the first statement.
  const looked = kept && (await lookAt(kept, vector, kept.hides ? ESTIMATED : estimatedOf(kept.rows, wanted)))
  const inMemory = looked && (await nearestKept(services, alone, looked, { vector, wanted, filter, reading }))
  if (inMemory) {
    vectorSearches.inc({ by: 'memory' })
    return sortByScore(inMemory)
  }
  const { found, by, scanned } = await inTransaction(pool, async db => {
    await setForTransaction(db, settings)
    const scan = { ...scope, code: codeOf(vector) }
    const near = indexed ? await searchIndex(db, { ...scan, limit: wanted }) : []
    const cosines = async (ids: readonly number[]) =>
      [...(await scoreIds(services, db, { ids, question: vector, filter: null })).values()].filter(row => row !== null)
    // The index gives up in scopes that are a small part of it; they are small enough to be scanned.
    if (near.length === wanted) return { found: await cosines(near), by: 'index', scanned: 0 }
    const { ids, codes } = await scanCodes(db, { ...scan, limit: ESTIMATED })
    const nearest = byEstimate(codes, [...ids.keys()], vector)
    const read: ScoredRow[] = []
    for (let at = 0; at < Math.min(wanted, nearest.rows.length) && !reading.isEnough(nearest.near[at], read); ) {
      const part = nearest.rows.slice(at, Math.min(wanted, at + reading.first))
      at += part.length
      read.push(...(await cosines(part.map(row => ids[row]))))
    }
    return { found: read, by: 'scan', scanned: ids.length }
  })
  vectorSearches.inc({ by })
  if (keepable && scanned === ESTIMATED) recordScan(services, keepable)
  return sortByScore(found)
}

/** Rows with their estimates, the nearest first. */
type Estimated = { rows: number[]; near: number[] }

/** Codes that are kept, as they were at a moment, with the rows whose vectors are worth reading. */
type Looked = { kept: CachedCodes; moment: CodeSnapshot; nearest: Estimated; limit: number }

async function lookAt(kept: CachedCodes, vector: Float32Array, limit: number): Promise<Looked> {
  const moment = codeSnapshot(kept)
  const rows = await nearestCodes(kept, codeBytes(vector), limit)
  return { kept, moment, nearest: byEstimate(kept.codes, rows, vector), limit }
}

/**
 * The candidates among codes that are kept, as a scan would choose them; null when the codes had to be dropped, or when too
 * few of the nearest are left: they are not ready, or were deleted.
 */
async function nearestKept(
  services: Services,
  alone: Alone,
  { kept, moment, nearest: before, limit }: Looked,
  search: { vector: Float32Array; wanted: number; filter: Scan['filter']; reading: Reading },
): Promise<ScoredRow[] | null> {
  const { vector, wanted, filter, reading } = search
  const ids = before.rows.slice(0, reading.first).map(row => kept.ids[row])
  const unsure = keptNear(services, ids, vector)
  const asked = pinVectors(services, kept.hides ? ids : toCheck(ids, unsure, reading.sure))
  const news = await refreshCodes(services, alone, kept, { since: moment, known: asked, filter })
  if (!news) return null
  const near = scoreCached(services, asked, news.vectors, vector)
  const known = new Set(asked.ids)
  kept.hides = asked.ids.some(id => !near.get(id))
  if (kept.hides && known.size < ids.length) {
    // Where some are hidden, others are: none of them may take a place.
    const rest = ids.filter(id => !known.has(id))
    const read = await alone(db => scoreIds(services, db, { ids: rest, question: vector, filter }))
    for (const id of rest) known.add(id)
    for (const [id, place] of read) near.set(id, place)
  }
  for (const row of news.rows) unsure.delete(kept.ids[row])
  const nearest =
    news.rows.length > MOST_MERGED
      ? (await lookAt(kept, vector, limit)).nearest
      : merged(before, byEstimate(kept.codes, news.rows, vector))
  const found: ScoredRow[] = []
  const gone: number[] = []
  let enough = false
  for (let at = 0; at < nearest.rows.length && found.length < wanted && !enough; ) {
    const part = nearest.rows.slice(at, at + Math.max(LEAST_READ, reading.first - found.length))
    at += part.length
    const unknown = part.map(row => kept.ids[row]).filter(id => !known.has(id) && !unsure.has(id))
    const read =
      unknown.length > 0 ? await alone(db => scoreIds(services, db, { ids: unknown, question: vector, filter })) : null
    for (const row of part) {
      const id = kept.ids[row]
      const place = known.has(id) ? near.get(id) : (unsure.get(id) ?? read?.get(id))
      if (place) found.push(place)
      else if (place === undefined) gone.push(row)
    }
    enough = reading.isEnough(nearest.near[at], found)
  }
  evictRows(kept, gone)
  if (enough || found.length >= wanted || nearest.rows.length < limit) return found.slice(0, wanted)
  if (limit < ESTIMATED) return nearestKept(services, alone, await lookAt(kept, vector, ESTIMATED), search)
  if (gone.length > 0) dropCodes(services, kept)
  return null
}

/** Of candidates those that are not kept, and those of the rows that are the nearest by what is kept. */
function toCheck(ids: readonly number[], kept: ReadonlyMap<number, ScoredRow>, rows: number): readonly number[] {
  if (ids.length <= rows) return ids
  const nearest = new Set(
    sortByScore(kept.values())
      .slice(0, rows)
      .map(({ ref_id }) => ref_id),
  )
  return ids.filter(id => nearest.has(kept.get(id)?.ref_id ?? '') || !kept.has(id))
}

/** Rows of two rankings in one, the nearest first; a row of both stands where the second has it. */
function merged(before: Estimated, news: Estimated): Estimated {
  const again = new Set(news.rows)
  const rows: number[] = []
  const near: number[] = []
  let next = 0
  const add = ({ rows: of, near: estimated }: Estimated, at: number) => {
    rows.push(of[at])
    near.push(estimated[at])
  }
  for (let at = 0; at < before.rows.length; at++) {
    while (next < news.rows.length && news.near[next] > before.near[at]) add(news, next++)
    if (!again.has(before.rows[at])) add(before, at)
  }
  while (next < news.rows.length) add(news, next++)
  return { rows, near }
}

/** Rows by how near their codes are estimated to be to the question. */
function byEstimate(codes: Uint8Array, rows: readonly number[], question: Float32Array): Estimated {
  if (rows.length === 0) return { rows: [], near: [] }
  const near = estimateCosines(question, codes, rows)
  // A difference would be allocated at each comparison.
  const order = new Uint32Array(rows.length).map((_, index) => index)
  order.sort((left, right) => (near[right] > near[left] ? 1 : -1))
  return { rows: rows.map((_, place) => rows[order[place]]), near: rows.map((_, place) => near[order[place]]) }
}

/**
 * Settings of one scan, gone with its transaction. Always a plan for the project at hand: a general one would suit the
 * average project. Rows are read from the index alone: the planner prices other scans by what they read, not by what they
 * cost the processor, and would take the heap in the order of another index (twice the time). In one process: a second has
 * to be started and warmed, which costs a fifth more in all, and on two cores, beside the search by words, no request was
 * answered much sooner for it (median 62 to 66 ms with it, 66 to 69 without).
 */
const settingsOf = (options: { timeoutMs: number; indexed: number | null }): Record<string, string> => ({
  statement_timeout: String(options.timeoutMs),
  jit: 'off',
  plan_cache_mode: 'force_custom_plan',
  enable_seqscan: 'off',
  enable_bitmapscan: 'off',
  random_page_cost: '1',
  max_parallel_workers_per_gather: '0',
  ...(options.indexed === null
    ? {}
    : { 'hnsw.iterative_scan': 'relaxed_order', 'hnsw.ef_search': String(Math.min(1000, options.indexed)) }),
})

/** Dot product of two vectors of length 1. */
export const cosineSimilarity = (left: Float32Array, right: Float32Array): number => cosineAt(left, 0, right)

/** The cosines of vectors that were read by themselves. */
export function* cosinesOf(found: readonly StoredVector[], question: Float32Array): Generator<ScoredRow> {
  // Decoded one after the other into the same memory: an array for each was half of what a search cost this process.
  const vector = new Float32Array(question.length)
  const bytes = Buffer.from(vector.buffer)
  for (const { ref_id, container_id, vec } of found) {
    bytes.write(vec, 'base64')
    yield { ref_id, container_id, cosine: cosineSimilarity(vector, question) }
  }
}

/** Rows by cosine, then id; a row stands where its best segment does. */
export function sortByScore(found: Iterable<ScoredRow>): ScoredRow[] {
  const best = new Map<string, ScoredRow>()
  for (const near of found) {
    const known = best.get(near.ref_id)
    if (!known || known.cosine < near.cosine) best.set(near.ref_id, near)
  }
  return [...best.values()].sort(
    (left, right) =>
      right.cosine - left.cosine || (left.ref_id < right.ref_id ? -1 : left.ref_id > right.ref_id ? 1 : 0),
  )
}
