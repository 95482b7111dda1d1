import { AppError, raise } from '../../core/api/errors.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { cosinesOf, sortByScore } from '../vectors/scan.ts'
import { vectorsOfRefs } from '../vectors/store.ts'
import { type FusedRow, fuseRankings } from './fuse.ts'
import type { Result, SearchAnswer, SearchInput } from './model.ts'
import { requireReranker, rerankResults } from './rerank.ts'
import {
  type ChannelFailure,
  type ChannelRow,
  type EmbeddedQuery,
  lexicalChannel,
  vectorChannel,
} from './search-channels.ts'
import { type SearchScope, type SourceSelection, selectionsOf } from './sources.ts'

/** For whom a search is done. */
export type SearchPurpose = {
  /** What the embedding of the query is recorded under: a request or a turn. */
  ref: string
  signal?: AbortSignal
  /** Part of work that was let in before: quotas are not asked again. */
  admitted?: boolean
}

/**
 * Searches what the caller may search. Permissions and filters are part of every statement that finds rows:
 * hidden rows take no place, and their words and vectors change no order.
 *
 * Both channels run at the same time, each over all sources; one that could not be asked is in `degraded_channels`.
 * @throws AppError VALIDATION_FAILED and TOOL_NOT_FOUND for a reranker that cannot be asked; QUOTA_EXCEEDED; AI_PROVIDER_ERROR when the
 *   embedding provider failed and the words could not be searched either
 */
export async function runSearch(
  services: Services,
  scope: SearchScope,
  request: SearchInput,
  purpose: SearchPurpose,
): Promise<SearchAnswer> {
  if (request.rerank) await requireReranker(services, scope, request.rerank.tool_id)
  const selections = await selectionsOf(services, scope, request)
  const { query } = request
  if (!query) return { results: await listed(services, scope, request, selections), degraded_channels: [] }

  const depth = Math.min(500, Math.max(50, 5 * request.limit))
  const [vector, lexical] = await Promise.all([
    vectorChannel(services, selections, { query, limit: request.limit, depth, project: scope.project, ...purpose }),
    lexicalChannel(services, selections, { query, wanted: request.limit, depth }),
  ])
  const degraded = degradedChannels(vector, lexical)
  const near = 'rows' in vector ? vector.rows : []
  const least = request.min_similarity ?? request.min_score ?? -1
  const channels = {
    vector: near.filter(row => row.cosine >= least).slice(0, depth),
    lexical: 'rows' in lexical ? lexical.rows : [],
  }
  const rows = new Map<string, ChannelRow>([...channels.lexical, ...channels.vector].map(row => [row.key, row]))
  const cosines = new Map(near.map(row => [row.key, row.cosine]))
  const fused = spread(
    await ranking(services, request, { channels, rows, cosines }),
    rows,
    request.max_chunks_per_document,
  ).slice(0, Math.max(request.limit, request.rerank?.top_n ?? 0))

  const [records] = await Promise.all([
    recordsOf(services, scope, request, fused, rows),
    'question' in vector && addCosines(services, vector.question, fused, rows, cosines),
  ])
  const results = fused.flatMap(({ key, score, signals }): Result[] => {
    const record = records.get(key)
    const cosine = cosines.get(key)
    if (!record) return []
    return [{ ...record, score, ...(cosine === undefined ? {} : { similarity_score: similarity(cosine) }), signals }]
  })
  const reordered = request.rerank
    ? await rerankResults(services, results, {
        ...request.rerank,
        project_id: scope.project as string,
        query,
        principal: principalRecord(scope.caller),
        signal: purpose.signal,
      })
    : results
  return {
    results: (reordered ?? results).slice(0, request.limit),
    degraded_channels: reordered ? degraded : [...degraded, 'rerank'],
  }
}

const similarity = (cosine: number): number => Math.round(Math.max(0, cosine) * 1e6) / 1e6

/** Raises when no channel is left: what the provider failed with, else INTERNAL_ERROR. */
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

async function ranking(
  services: Services,
  request: SearchInput,
  found: {
    channels: { vector: readonly ChannelRow[]; lexical: readonly ChannelRow[] }
    rows: ReadonlyMap<string, ChannelRow>
    cosines: ReadonlyMap<string, number>
  },
): Promise<FusedRow[]> {
  const { config, clock, pool } = services
  const halfLifeDays = request.recency_half_life_days ?? config.KNOWLEDGE_RECENCY_HALF_LIFE_DAYS
  const changedAt = new Map<string, Date>()
  if (halfLifeDays > 0) {
    for (const [selection, ids] of idsBySelection(found.rows.values())) {
      const { changedAt: read, type } = selection.source
      for (const [id, time] of (await read?.(pool, ids)) ?? []) changedAt.set(`${type}:${id}`, time)
    }
  }
  return fuseRankings(found.channels, {
    k: request.rrf_k ?? config.KNOWLEDGE_RRF_K,
    halfLifeDays,
    now: clock.now(),
    changedAt,
    similarity: found.cosines,
  })
}

/** At most so many rows of one document; the others move up. */
function spread(
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
  most: number | undefined,
): readonly FusedRow[] {
  if (most === undefined) return fused
  const taken = new Map<string, number>()
  return fused.filter(({ key }) => {
    const { container_id, selection } = rows.get(key) as ChannelRow
    if (selection.source.type !== 'document') return true
    const count = (taken.get(container_id) ?? 0) + 1
    taken.set(container_id, count)
    return count <= most
  })
}

function idsBySelection(rows: Iterable<ChannelRow>): Map<SourceSelection, string[]> {
  const ids = new Map<SourceSelection, string[]>()
  for (const { selection, ref_id } of rows) ids.set(selection, [...(ids.get(selection) ?? []), ref_id])
  return ids
}

const rowsOf = (fused: readonly FusedRow[], rows: ReadonlyMap<string, ChannelRow>): ChannelRow[] =>
  fused.map(({ key }) => rows.get(key) as ChannelRow)

/** The records of ranked rows; a row that was deleted or hidden meanwhile is missing. */
async function recordsOf(
  { pool }: Services,
  scope: SearchScope,
  request: SearchInput,
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
): Promise<Map<string, Result>> {
  const read = await Promise.all(
    [...idsBySelection(rowsOf(fused, rows))].map(async ([{ source }, ids]) => {
      const records = await source.read(pool, scope, request, ids, { neighbors: request.neighbors ?? 0 })
      return [...records].map(([id, record]) => [`${source.type}:${id}`, record] as const)
    }),
  )
  return new Map(read.flat())
}

/** Adds the cosines of rows that words alone have found. */
async function addCosines(
  { pool }: Services,
  { vector, space }: EmbeddedQuery,
  fused: readonly FusedRow[],
  rows: ReadonlyMap<string, ChannelRow>,
  cosines: Map<string, number>,
): Promise<void> {
  const unknown = rowsOf(fused, rows).filter(({ key }) => !cosines.has(key))
  for (const [{ source }, ref_ids] of idsBySelection(unknown)) {
    const found = await vectorsOfRefs(pool, { source: source.number, ref_ids, space_id: space.id })
    for (const { ref_id, cosine } of sortByScore(cosinesOf(found, vector)))
      cosines.set(`${source.type}:${ref_id}`, cosine)
  }
}

/** Rows that a search without a query names, source after source. */
async function listed(
  { pool }: Services,
  scope: SearchScope,
  request: SearchInput,
  selections: readonly SourceSelection[],
): Promise<Result[]> {
  const results: Result[] = []
  for (const { source } of selections) {
    if (results.length >= request.limit) break
    results.push(...(await source.list(pool, scope, request, { neighbors: request.neighbors ?? 0 })))
  }
  return results.slice(0, request.limit)
}
