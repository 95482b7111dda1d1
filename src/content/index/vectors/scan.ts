import { Counter } from 'prom-client'
import type { Services } from '#core/base/services.ts'
import { sendWithCommit } from '#core/db/commit-piggyback.ts'
import { inTransaction } from '#core/db/pool.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import {
  type CachedCodes,
  type CodeSnapshot,
  codeSnapshot,
  evictCodes,
  evictRows,
  findCachedCodes,
  nearestCodes,
  type RunStatement,
  recordScan,
  refreshCodes,
} from './code-cache.ts'
import { codeBytes, codeOf, estimateCosines } from './codes.ts'
import { hasIndex } from './pgvector.ts'
import { type Scan, type StoredVector, scanCodes, searchIndex } from './store.ts'
import { cosineAt, pinVectors, type ScoredRow, scoreCached, scoreCachedOnly, scoreIds } from './vector-cache.ts'

export const vectorSearches = new Counter({
  name: 'muster_vector_searches_total',
  help: 'Vector searches of one source by origin of candidates (memory, scan, index)',
  labelNames: ['by'],
  registers: [],
})

const MIN_CANDIDATES = 400
const MAX_CANDIDATES = 2000
/**
 * Number of nearest codes that are reranked by estimated cosine before candidates are selected. If no row is close to
 * the query (uniformly distributed vectors, short texts with feature hashing), a third of the true ten nearest rows are
 * not among the first 400 of 100,000 by code distance. Twice the number improves recall by less than 1 % at twice the
 * cost. Below 40,000 rows, a twentieth of the rows is enough, if it exceeds the number of candidates.
 */
const MAX_ESTIMATES = 2000
const estimateCount = (rows: number, candidates: number): number =>
  Math.min(MAX_ESTIMATES, Math.max(Math.ceil(rows / 20), Math.ceil(1.25 * candidates)))

/** Maximum number of newly merged codes that are estimated separately; with more, all codes are compared again. */
const MAX_MERGED = 500

/** Minimum number of vectors read in place of deleted or hidden ones, to save round trips. */
const MIN_READ = 100

/**
 * How candidates are read: size of the first batch, number of nearest rows verified against the database, and whether
 * the remaining candidates can be skipped.
 */
type ReadPlan = { first: number; sure: number; isEnough(estimate: number, rows: readonly ScoredRow[]): boolean }

/** Estimates of cosines have a standard deviation of 0.028 (2,048 bits) and exceed this error once in millions. */
const MARGIN = 0.14

function readPlanFor(
  query: Float32Array,
  candidates: number,
  { sure = candidates, relevant }: { sure?: number; relevant?: number },
): ReadPlan {
  if (relevant === undefined) return { first: candidates, sure, isEnough: () => false }
  // The estimate for the query's own code corresponds to a cosine of 1.
  const [unit] = estimateCosines(query, codeBytes(query), [0])
  let best = -1
  let seen = 0
  return {
    first: MIN_READ,
    sure,
    isEnough(estimate, rows) {
      for (; seen < rows.length; seen++) best = Math.max(best, rows[seen].cosine)
      return estimate / unit < Math.min(best, relevant) - MARGIN
    },
  }
}

/**
 * Returns the rows of one source that are nearest to a query vector: selects codes by distance, the best of them by
 * estimated cosine, and the best of those by exact cosine. Sorted by cosine, then by ID, without duplicates. Exact if
 * the scope has no more rows than candidates.
 * @param scan.limit number of results, which determines the number of candidates
 * @param scan.sure number of nearest rows that are verified to exist and be visible; rows after them may be hidden,
 *   deleted or changed, and are useful only for the cosines of rows found by words. Default all
 * @param scan.relevant cosine below which only the nearest row matters: candidates are read in batches, until the
 *   remaining ones are estimated to be well below it and below the nearest row
 * @param scan.vector query vector, L2-normalized
 * @param scan.whole whether all ready rows of the project are visible, so that its codes may be compared in the process
 *   (code-cache.ts). For a part of a project, the database filters the rows: hidden rows would take time and displace
 *   visible ones
 * @throws the database error after KNOWLEDGE_QUERY_TIMEOUT_MS
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
  const candidates = Math.min(MAX_CANDIDATES, Math.max(MIN_CANDIDATES, config.KNOWLEDGE_CANDIDATE_FACTOR * limit))
  const { projects, space, source, filter } = scope
  const readPlan = readPlanFor(vector, candidates, { sure, relevant })
  const indexed = await hasIndex(services, space)
  const cacheable = whole && !indexed && projects?.length === 1 ? { project: projects[0], space, source } : null
  const codes = cacheable && findCachedCodes(services, cacheable)
  const settings = scanSettings({ timeoutMs: config.KNOWLEDGE_QUERY_TIMEOUT_MS, indexed: indexed ? candidates : null })
  const runStatement: RunStatement = send =>
    inTransaction(pool, async db => {
      // A generic plan: the statements read rows by ID or by transaction, and planning takes three times as long as
      // running.
      await setForTransaction(db, { ...settings, plan_cache_mode: 'force_generic_plan' })
      return sendWithCommit(() => send(db))
    })
  // Before a connection is acquired; the first statement merges later changes.
  const selection =
    codes && (await selectNearest(codes, vector, codes.hides ? MAX_ESTIMATES : estimateCount(codes.rows, candidates)))
  const cachedRows =
    selection && (await nearestCached(services, runStatement, selection, { vector, candidates, filter, readPlan }))
  if (cachedRows) {
    vectorSearches.inc({ by: 'memory' })
    return sortByScore(cachedRows)
  }
  const { rows, by, scanned } = await inTransaction(pool, async db => {
    await setForTransaction(db, settings)
    const scan = { ...scope, code: codeOf(vector) }
    const near = indexed ? await searchIndex(db, { ...scan, limit: candidates }) : []
    const score = async (ids: readonly number[]) =>
      [...(await scoreIds(services, db, { ids, query: vector, filter: null })).values()].filter(row => row !== null)
    // The index returns too few rows in scopes that are a small part of it; these are small enough for a scan.
    if (near.length === candidates) return { rows: await score(near), by: 'index', scanned: 0 }
    const { ids, codes } = await scanCodes(db, { ...scan, limit: MAX_ESTIMATES })
    const ranking = rankByEstimate(codes, [...ids.keys()], vector)
    const rows: ScoredRow[] = []
    for (
      let at = 0;
      at < Math.min(candidates, ranking.rows.length) && !readPlan.isEnough(ranking.estimates[at], rows);
    ) {
      const batch = ranking.rows.slice(at, Math.min(candidates, at + readPlan.first))
      at += batch.length
      const read = () => score(batch.map(row => ids[row]))
      rows.push(...(await (at === ranking.rows.length ? sendWithCommit(read) : read())))
    }
    return { rows, by: 'scan', scanned: ids.length }
  })
  vectorSearches.inc({ by })
  if (cacheable && scanned === MAX_ESTIMATES) recordScan(services, cacheable)
  return sortByScore(rows)
}

/** Rows with their estimates, nearest first. */
type Ranking = { rows: number[]; estimates: number[] }

/** Cached codes as of a snapshot, with the rows whose vectors are candidates. */
type CachedSelection = { codes: CachedCodes; snapshot: CodeSnapshot; nearest: Ranking; limit: number }

async function selectNearest(codes: CachedCodes, vector: Float32Array, limit: number): Promise<CachedSelection> {
  const snapshot = codeSnapshot(codes)
  const rows = await nearestCodes(codes, codeBytes(vector), limit)
  return { codes, snapshot, nearest: rankByEstimate(codes.codes, rows, vector), limit }
}

/**
 * Returns the candidates among cached codes, as a scan would select them; null if the codes were evicted, or if too few
 * of the nearest rows are ready and not deleted.
 */
async function nearestCached(
  services: Services,
  runStatement: RunStatement,
  { codes, snapshot, nearest: selected, limit }: CachedSelection,
  search: { vector: Float32Array; candidates: number; filter: Scan['filter']; readPlan: ReadPlan },
): Promise<ScoredRow[] | null> {
  const { vector, candidates, filter, readPlan } = search
  const ids = selected.rows.slice(0, readPlan.first).map(row => codes.ids[row])
  const unverified = scoreCachedOnly(services, ids, vector)
  const pinned = pinVectors(services, codes.hides ? ids : selectToVerify(ids, unverified, readPlan.sure))
  const changes = await refreshCodes(services, runStatement, codes, { since: snapshot, known: pinned, filter })
  if (!changes) return null
  const scores = scoreCached(services, pinned, changes.vectors, vector)
  const verified = new Set(pinned.ids)
  codes.hides = pinned.ids.some(id => !scores.get(id))
  if (codes.hides && verified.size < ids.length) {
    // If some rows are hidden, others may be too; verify all, so that hidden rows displace no visible ones.
    const rest = ids.filter(id => !verified.has(id))
    const restScores = await runStatement(db => scoreIds(services, db, { ids: rest, query: vector, filter }))
    for (const id of rest) verified.add(id)
    for (const [id, score] of restScores) scores.set(id, score)
  }
  for (const row of changes.rows) unverified.delete(codes.ids[row])
  const nearest =
    changes.rows.length > MAX_MERGED
      ? (await selectNearest(codes, vector, limit)).nearest
      : mergeRankings(selected, rankByEstimate(codes.codes, changes.rows, vector))
  const rows: ScoredRow[] = []
  const deleted: number[] = []
  let enough = false
  for (let at = 0; at < nearest.rows.length && rows.length < candidates && !enough; ) {
    const batch = nearest.rows.slice(at, at + Math.max(MIN_READ, readPlan.first - rows.length))
    at += batch.length
    const missing = batch.map(row => codes.ids[row]).filter(id => !verified.has(id) && !unverified.has(id))
    const missingScores =
      missing.length > 0
        ? await runStatement(db => scoreIds(services, db, { ids: missing, query: vector, filter }))
        : null
    for (const row of batch) {
      const id = codes.ids[row]
      const score = verified.has(id) ? scores.get(id) : (unverified.get(id) ?? missingScores?.get(id))
      if (score) rows.push(score)
      else if (score === undefined) deleted.push(row)
    }
    enough = readPlan.isEnough(nearest.estimates[at], rows)
  }
  evictRows(codes, deleted)
  if (enough || rows.length >= candidates || nearest.rows.length < limit) return rows.slice(0, candidates)
  if (limit < MAX_ESTIMATES)
    return nearestCached(services, runStatement, await selectNearest(codes, vector, MAX_ESTIMATES), search)
  if (deleted.length > 0) evictCodes(services, codes)
  return null
}

/** Returns the IDs to verify: uncached candidates, and the `count` nearest rows by cached vectors. */
function selectToVerify(
  ids: readonly number[],
  cached: ReadonlyMap<number, ScoredRow>,
  count: number,
): readonly number[] {
  if (ids.length <= count) return ids
  const nearest = new Set(
    sortByScore(cached.values())
      .slice(0, count)
      .map(({ ref_id }) => ref_id),
  )
  return ids.filter(id => nearest.has(cached.get(id)?.ref_id ?? '') || !cached.has(id))
}

/** Merges two rankings, nearest first; a row in both has the rank of the second. */
function mergeRankings(first: Ranking, second: Ranking): Ranking {
  const inSecond = new Set(second.rows)
  const rows: number[] = []
  const estimates: number[] = []
  let next = 0
  const add = (ranking: Ranking, at: number) => {
    rows.push(ranking.rows[at])
    estimates.push(ranking.estimates[at])
  }
  for (let at = 0; at < first.rows.length; at++) {
    while (next < second.rows.length && second.estimates[next] > first.estimates[at]) add(second, next++)
    if (!inSecond.has(first.rows[at])) add(first, at)
  }
  while (next < second.rows.length) add(second, next++)
  return { rows, estimates }
}

/** Ranks rows by the estimated cosines of their codes. */
function rankByEstimate(codes: Uint8Array, rows: readonly number[], query: Float32Array): Ranking {
  if (rows.length === 0) return { rows: [], estimates: [] }
  const estimates = estimateCosines(query, codes, rows)
  // Subtracting would allocate a number per comparison.
  const order = new Uint32Array(rows.length).map((_, index) => index)
  order.sort((left, right) => (estimates[right] > estimates[left] ? 1 : -1))
  return { rows: rows.map((_, at) => rows[order[at]]), estimates: rows.map((_, at) => estimates[order[at]]) }
}

/**
 * Returns the settings of a scan for its transaction. Custom plans, because a generic plan suits the average project.
 * Index-only scans: the planner prices other scans by the pages they read, not by processor time, and would read the
 * heap in the order of another index (twice the time). No parallel workers: starting one costs a fifth more in total
 * and, on two cores alongside the search by words, made requests hardly faster (median 62 to 66 ms with it, 66 to 69 ms
 * without).
 */
const scanSettings = (options: { timeoutMs: number; indexed: number | null }): Record<string, string> => ({
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

/** Returns the dot product of two vectors of length 1. */
export const cosineSimilarity = (left: Float32Array, right: Float32Array): number => cosineAt(left, 0, right)

/** Yields the cosines of stored vectors. */
export function* cosinesOf(vectors: readonly StoredVector[], query: Float32Array): Generator<ScoredRow> {
  // Decoded into the same buffer: an array per vector was half of the cost of a search in the process.
  const vector = new Float32Array(query.length)
  const bytes = Buffer.from(vector.buffer)
  for (const { ref_id, container_id, vec } of vectors) {
    bytes.write(vec, 'base64')
    yield { ref_id, container_id, cosine: cosineSimilarity(vector, query) }
  }
}

/** Sorts rows by the cosine of their best segment, then by ID. */
export function sortByScore(rows: Iterable<ScoredRow>): ScoredRow[] {
  const best = new Map<string, ScoredRow>()
  for (const row of rows) {
    const previous = best.get(row.ref_id)
    if (!previous || previous.cosine < row.cosine) best.set(row.ref_id, row)
  }
  return [...best.values()].sort(
    (left, right) =>
      right.cosine - left.cosine || (left.ref_id < right.ref_id ? -1 : left.ref_id > right.ref_id ? 1 : 0),
  )
}
