import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { currentSpan, type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER, OPERATION } from '#core/base/telemetry-names.ts'
import { type Reads, readsOfPrimary } from '#core/db/replica.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { cosinesOf, sortByScore } from '../index/vectors/scan.ts'
import { vectorsOfRefs } from '../index/vectors/store.ts'
import { type FusedRow, fuseRankings } from './fuse.ts'
import type { Result, SearchAnswer, SearchInput } from './model.ts'
import { requireReranker, rerankResults } from './rerank.ts'
import {
  type ChannelFailure,
  type ChannelRow,
  type QueryVector,
  searchLexically,
  searchVectors,
} from './search-channels.ts'
import { type SearchScope, type SourceSelection, selectSources } from './sources.ts'

/** Request or turn that a search belongs to. */
export type SearchPurpose = {
  /** ID of the request or turn, to meter the embedding of the query by. */
  ref: string
  signal?: AbortSignal
  /** Part of work whose quotas were already checked. */
  admitted?: boolean
}

/**
 * Searches the rows that the caller may search. Permissions and filters are part of every statement, so that hidden
 * rows affect neither limits nor ranks.
 *
 * Both channels run concurrently over all sources; unavailable channels are listed in `degraded_channels`.
 * @throws AppError VALIDATION_FAILED, TOOL_NOT_FOUND and FORBIDDEN for an unusable reranker; QUOTA_EXCEEDED;
 *   AI_PROVIDER_ERROR if the embedding provider and the search by words failed
 * @param reads database of the search by words and of the records
 */
export const runSearch = (
  services: Services,
  scope: SearchScope,
  request: SearchInput,
  purpose: SearchPurpose,
  reads = readsOfPrimary(services.pool),
): Promise<SearchAnswer> =>
  traced(searchSpan, request, async span => {
    const answer = await search(services, reads, scope, request, purpose)
    if (span) noteHits(span, answer)
    return answer
  })

const searchSpan = (): SpanStart => ({
  name: OPERATION.retrieval,
  attributes: { [ATTRIBUTE.operation]: OPERATION.retrieval },
})

/** The span of a channel of a search. */
const channelSpan = (channel: string): SpanStart => ({ name: `search ${channel}` })

/** Adds the hits of a channel to its span. */
function noteChannel<T extends object>(span: Span | null, found: T): T {
  if ('rows' in found) span?.set({ [MUSTER.hits]: (found.rows as unknown[]).length })
  return found
}

/** Adds the results of a search to its span. */
function noteHits(span: Span, { results, degraded_channels }: SearchAnswer): void {
  const ofMemory = span.attributes[ATTRIBUTE.operation] === OPERATION.searchMemory
  span.set({
    [MUSTER.hits]: results.length,
    [ATTRIBUTE.memories]: ofMemory ? results.length : null,
    [MUSTER.degraded]: degraded_channels,
  })
}

/** Names the sources of a search in its span. */
function noteSources(selections: readonly SourceSelection[], { limit }: SearchInput): void {
  const span = currentSpan()
  if (!span) return
  const sources = selections.map(({ source }) => source.type).join(',')
  if (sources === 'memory') {
    span.rename(OPERATION.searchMemory)
    span.set({ [ATTRIBUTE.operation]: OPERATION.searchMemory })
  } else {
    span.rename(`${OPERATION.retrieval} ${sources}`.trim())
    span.set({ [ATTRIBUTE.dataSource]: sources, [ATTRIBUTE.retrieved]: limit })
  }
}

async function search(
  services: Services,
  reads: Reads,
  scope: SearchScope,
  request: SearchInput,
  purpose: SearchPurpose,
): Promise<SearchAnswer> {
  if (request.rerank) await requireReranker(services, scope, request.rerank.tool_id)
  const selections = await selectSources(services, scope, request)
  noteSources(selections, request)
  const { query } = request
  if (!query) return { results: await listWithoutQuery(reads, scope, request, selections), degraded_channels: [] }

  const depth = Math.min(500, Math.max(50, 5 * request.limit))
  const [vector, lexical] = await Promise.all([
    traced(channelSpan, 'vector', async span =>
      noteChannel(
        span,
        await searchVectors(services, selections, {
          query,
          limit: request.limit,
          depth,
          project: scope.project,
          ...purpose,
        }),
      ),
    ),
    traced(channelSpan, 'lexical', async span =>
      noteChannel(span, await searchLexically(services, reads, selections, { query, minHits: request.limit, depth })),
    ),
  ])
  const degraded = degradedChannels(vector, lexical)
  const near = 'rows' in vector ? vector.rows : []
  const minCosine = request.min_similarity ?? request.min_score ?? -1
  const channels = {
    vector: near.filter(row => row.cosine >= minCosine).slice(0, depth),
    lexical: 'rows' in lexical ? lexical.rows : [],
  }
  const rows = new Map<string, ChannelRow>([...channels.lexical, ...channels.vector].map(row => [row.key, row]))
  const cosines = new Map(near.map(row => [row.key, row.cosine]))
  const fused = limitPerDocument(
    await rankRows(services, reads, request, { channels, rows, cosines }),
    rows,
    request.max_chunks_per_document,
  ).slice(0, Math.max(request.limit, request.rerank?.top_n ?? 0))

  const [records] = await Promise.all([
    readRecords(reads, scope, request, fused, rows),
    'queryVector' in vector && addCosines(reads, vector.queryVector, fused, rows, cosines),
  ])
  const results = fused.flatMap(({ key, score, signals }): Result[] => {
    const record = records.get(key)
    const cosine = cosines.get(key)
    if (!record) return []
    return [{ ...record, score, ...(cosine === undefined ? {} : { similarity_score: similarity(cosine) }), signals }]
  })
  const reranked = request.rerank
    ? await rerankResults(services, results, {
        ...request.rerank,
        project_id: scope.project as string,
        query,
        principal: principalRecord(scope.caller),
        signal: purpose.signal,
      })
    : results
  return {
    results: (reranked ?? results).slice(0, request.limit),
    degraded_channels: reranked ? degraded : [...degraded, 'rerank'],
  }
}

const similarity = (cosine: number): number => Math.round(Math.max(0, cosine) * 1e6) / 1e6

/** Returns the unavailable channels. If both are, raises the provider error, else INTERNAL_ERROR. */
function degradedChannels(
  vector: object | ChannelFailure,
  lexical: object | ChannelFailure,
): SearchAnswer['degraded_channels'] {
  if ('failed' in vector && 'failed' in lexical) {
    if (vector.failed instanceof AppError) throw vector.failed
    raise('INTERNAL_ERROR', { cause: lexical.failed })
  }
  if ('failed' in vector) return ['vector']
  return 'failed' in lexical ? ['lexical'] : []
}

async function rankRows(
  { config, clock }: Services,
  reads: Reads,
  request: SearchInput,
  candidates: {
    channels: { vector: readonly ChannelRow[]; lexical: readonly ChannelRow[] }
    rows: ReadonlyMap<string, ChannelRow>
    cosines: ReadonlyMap<string, number>
  },
): Promise<FusedRow[]> {
  const halfLifeDays = request.recency_half_life_days ?? config.KNOWLEDGE_RECENCY_HALF_LIFE_DAYS
  const changedAt = new Map<string, Date>()
  if (halfLifeDays > 0) {
    for (const [selection, ids] of idsBySelection(candidates.rows.values())) {
      const { readChangedAt, type } = selection.source
      for (const [id, time] of (await readChangedAt?.(reads, ids)) ?? []) changedAt.set(`${type}:${id}`, time)
    }
  }
  return fuseRankings(candidates.channels, {
    k: request.rrf_k ?? config.KNOWLEDGE_RRF_K,
    halfLifeDays,
    now: clock.now(),
    changedAt,
    similarity: candidates.cosines,
  })
}

/** Keeps at most `limit` rows per document. */
function limitPerDocument(
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
  limit: number | undefined,
): readonly FusedRow[] {
  if (limit === undefined) return fused
  const counts = new Map<string, number>()
  return fused.filter(({ key }) => {
    const { container_id, selection } = rows.get(key) as ChannelRow
    if (selection.source.type !== 'document') return true
    const count = (counts.get(container_id) ?? 0) + 1
    counts.set(container_id, count)
    return count <= limit
  })
}

function idsBySelection(rows: Iterable<ChannelRow>): Map<SourceSelection, string[]> {
  const ids = new Map<SourceSelection, string[]>()
  for (const { selection, ref_id } of rows) ids.set(selection, [...(ids.get(selection) ?? []), ref_id])
  return ids
}

const rowsOf = (fused: readonly FusedRow[], rows: ReadonlyMap<string, ChannelRow>): ChannelRow[] =>
  fused.map(({ key }) => rows.get(key) as ChannelRow)

/** Reads the records of ranked rows, without rows that were deleted or hidden concurrently. */
async function readRecords(
  reads: Reads,
  scope: SearchScope,
  request: SearchInput,
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
): Promise<Map<string, Result>> {
  const read = await Promise.all(
    [...idsBySelection(rowsOf(fused, rows))].map(async ([{ source }, ids]) => {
      const records = await source.read(reads, scope, request, ids, { neighbors: request.neighbors ?? 0 })
      return [...records].map(([id, record]) => [`${source.type}:${id}`, record] as const)
    }),
  )
  return new Map(read.flat())
}

/** Adds the cosines of rows found only by words. */
async function addCosines(
  reads: Reads,
  { vector, space }: QueryVector,
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
  cosines: Map<string, number>,
): Promise<void> {
  const missing = rowsOf(fused, rows).filter(({ key }) => !cosines.has(key))
  for (const [{ source }, ref_ids] of idsBySelection(missing)) {
    const vectors = await vectorsOfRefs(reads, { source: source.number, ref_ids, space_id: space.id })
    for (const { ref_id, cosine } of sortByScore(cosinesOf(vectors, vector)))
      cosines.set(`${source.type}:${ref_id}`, cosine)
  }
}

/** Lists the rows of a search without a query, source by source. */
async function listWithoutQuery(
  reads: Reads,
  scope: SearchScope,
  request: SearchInput,
  selections: readonly SourceSelection[],
): Promise<Result[]> {
  const results: Result[] = []
  for (const { source } of selections) {
    if (results.length >= request.limit) break
    results.push(...(await source.list(reads, scope, request, { neighbors: request.neighbors ?? 0 })))
  }
  return results.slice(0, request.limit)
}
