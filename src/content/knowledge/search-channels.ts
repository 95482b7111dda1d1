import { StatementTimeoutError } from 'slonik'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Reads } from '#core/db/replica.ts'
import { embedderOf } from '../index/embeddings/embedder.ts'
import { currentSpace, type Space } from '../index/embeddings/space.ts'
import { nearestRows } from '../index/vectors/scan.ts'
import { searchWords } from './lexical.ts'
import type { SourceSelection } from './sources.ts'
import type { Hit } from './store.ts'

/** A row found by a channel; `key` is unique across sources. */
export type ChannelRow = { key: string; selection: SourceSelection; ref_id: string; container_id: string }
export type NearRow = ChannelRow & { cosine: number }

/** Error of an unavailable channel; null if embeddings are not configured. */
export type ChannelFailure = { failed: unknown }

export type QueryVector = { vector: Float32Array; space: Space }

const rowOf = (
  selection: SourceSelection,
  { ref_id, container_id }: { ref_id: string; container_id: string },
): ChannelRow => ({
  key: `${selection.source.type}:${ref_id}`,
  selection,
  ref_id,
  container_id,
})

/** Searches all sources by vectors; returns rows by descending cosine, and the query vector. */
export async function searchVectors(
  services: Services,
  selections: readonly SourceSelection[],
  options: {
    query: string
    limit: number
    /** Maximum number of rows. */
    depth: number
    project: string | null
    ref: string
    signal?: AbortSignal
    admitted?: boolean
  },
): Promise<{ rows: NearRow[]; queryVector: QueryVector } | ChannelFailure> {
  const embedder = embedderOf(services)
  if (!embedder.configured) return { failed: null }
  try {
    const [vector, space] = await Promise.all([
      embedder.embedQuery(options.query, {
        project_id: options.project,
        purpose: { kind: 'search', ref: options.ref },
        timeoutMs: services.config.KNOWLEDGE_EMBED_TIMEOUT_MS,
        signal: options.signal,
        admitted: options.admitted,
      }),
      currentSpace(services) as Promise<Space>,
    ])
    const queryVector = { vector, space }
    // A text without content, such as punctuation, matches nothing.
    if (vector.every(value => value === 0)) return { rows: [], queryVector }
    const rowsBySource = await Promise.all(
      selections.map(async selection => {
        const { source, projects, filter, whole } = selection
        const near = await nearestRows(services, {
          projects,
          space,
          source: source.number,
          filter,
          whole,
          vector,
          limit: options.limit,
          sure: options.depth,
        })
        return near.map(row => ({ ...rowOf(selection, row), cosine: row.cosine }))
      }),
    )
    return { rows: rowsBySource.flat().sort((left, right) => right.cosine - left.cosine), queryVector }
  } catch (error) {
    return channelFailure(services, 'vector', error)
  }
}

const MATCHES: Hit['match'][] = ['phrase', 'all', 'some']

/** Searches all sources by words. */
export async function searchLexically(
  services: Services,
  reads: Reads,
  selections: readonly SourceSelection[],
  options: { query: string; minHits: number; depth: number },
): Promise<{ rows: ChannelRow[] } | ChannelFailure> {
  try {
    const rowsBySource = await Promise.all(
      selections.map(async selection => {
        const hits = await searchWords(services, reads, selection, options.query, options)
        return hits.map(hit => ({ ...rowOf(selection, hit), match: MATCHES.indexOf(hit.match), rank: hit.rank }))
      }),
    )
    // The order of a single source is more precise than the rank.
    const rows = rowsBySource.flat()
    if (rowsBySource.length > 1) rows.sort((left, right) => left.match - right.match || right.rank - left.rank)
    return { rows: rows.slice(0, options.depth) }
  } catch (error) {
    return channelFailure(services, 'lexical', error)
  }
}

/**
 * Returns the failure of a channel for errors that degrade a search: a provider error, a statement timeout, a missing
 * text search configuration. Throws all other errors.
 */
function channelFailure({ log }: Services, channel: string, error: unknown): ChannelFailure {
  const isTolerated =
    error instanceof StatementTimeoutError ||
    (error as { code?: string }).code === UNDEFINED_OBJECT ||
    (error instanceof AppError && error.code === 'AI_PROVIDER_ERROR')
  if (!isTolerated) throw error
  const { code, name, message } = error as Error & { code?: string }
  log.warn({ channel, code: code ?? name, detail: message }, 'search channel unavailable')
  return { failed: error }
}

const UNDEFINED_OBJECT = '42704'
