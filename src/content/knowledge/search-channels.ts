import { StatementTimeoutError } from 'slonik'
import { AppError } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { embedderOf } from '../embeddings/embedder.ts'
import { currentSpace, type Space } from '../embeddings/space.ts'
import { nearestRows } from '../vectors/scan.ts'
import { lexicalHits } from './lexical.ts'
import type { SourceSelection } from './sources.ts'
import type { Hit } from './store.ts'

/** A row that a channel found; `key` names it over all sources. */
export type ChannelRow = { key: string; selection: SourceSelection; ref_id: string; container_id: string }
export type NearRow = ChannelRow & { cosine: number }

/** A channel that could not be asked, and why; null when the deployment has no embeddings. */
export type ChannelFailure = { failed: unknown }

export type EmbeddedQuery = { vector: Float32Array; space: Space }

const rowOf = (
  selection: SourceSelection,
  { ref_id, container_id }: { ref_id: string; container_id: string },
): ChannelRow => ({
  key: `${selection.source.type}:${ref_id}`,
  selection,
  ref_id,
  container_id,
})

/** Rows by cosine over all sources, and the question they were measured with. */
export async function vectorChannel(
  services: Services,
  selections: readonly SourceSelection[],
  options: {
    query: string
    limit: number
    /** Rows that the answer takes of the channel at most. */
    depth: number
    project: string | null
    ref: string
    signal?: AbortSignal
    admitted?: boolean
  },
): Promise<{ rows: NearRow[]; question: EmbeddedQuery } | ChannelFailure> {
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
    const question = { vector, space }
    // The model finds nothing in it (punctuation alone), so nothing is near it.
    if (vector.every(value => value === 0)) return { rows: [], question }
    const found = await Promise.all(
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
    return { rows: found.flat().sort((left, right) => right.cosine - left.cosine), question }
  } catch (error) {
    return failed(services, 'vector', error)
  }
}

const MATCHES: Hit['match'][] = ['phrase', 'all', 'some']

/** Rows that hold the words of the query, over all sources. */
export async function lexicalChannel(
  services: Services,
  selections: readonly SourceSelection[],
  options: { query: string; wanted: number; depth: number },
): Promise<{ rows: ChannelRow[] } | ChannelFailure> {
  try {
    const found = await Promise.all(
      selections.map(async selection => {
        const hits = await lexicalHits(services, selection, options.query, options)
        return hits.map(hit => ({ ...rowOf(selection, hit), match: MATCHES.indexOf(hit.match), rank: hit.rank }))
      }),
    )
    // One source is in its order already, which knows more than the rank.
    const rows = found.flat()
    if (found.length > 1) rows.sort((left, right) => left.match - right.match || right.rank - left.rank)
    return { rows: rows.slice(0, options.depth) }
  } catch (error) {
    return failed(services, 'lexical', error)
  }
}

/** What a search survives: a provider that fails, a statement that takes too long, a configuration that is not there. */
function failed({ log }: Services, channel: string, error: unknown): ChannelFailure {
  const survived =
    error instanceof StatementTimeoutError ||
    (error as { code?: string }).code === UNDEFINED_OBJECT ||
    (error instanceof AppError && error.code === 'AI_PROVIDER_ERROR')
  if (!survived) throw error
  const { code, name, message } = error as Error & { code?: string }
  log.warn({ channel, code: code ?? name, detail: message }, 'search without a channel')
  return { failed: error }
}

const UNDEFINED_OBJECT = '42704'
