import { AppError } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { embedderOf, isTextRejection } from '../embeddings/embedder.ts'
import { isZero } from '../embeddings/local.ts'
import type { EmbedOptions } from '../embeddings/model.ts'
import { indexTexts } from '../words/index-text.ts'
import type { ChunkDraft } from './model.ts'

/** A chunk with one vector per window of its text; none if it failed or has nothing to embed. */
export type EmbeddedChunk = ChunkDraft & {
  id: string
  /** Words of the content; see `indexTexts`. */
  words: string
  vectors: Float32Array[]
  /** Whether embedding failed and may succeed later. */
  failed: boolean
}

const OVERLAP = 200
const MAX_SEGMENTS = 64

/**
 * Splits a text into at most 64 windows of `maxChars` characters for embedding, each overlapping the previous one by
 * 200. Never splits a surrogate pair.
 */
export function embeddingWindows(text: string, maxChars: number): string[] {
  const segments: string[] = []
  for (let start = 0; segments.length < MAX_SEGMENTS; ) {
    const end = alignToCharacter(text, start + maxChars)
    segments.push(text.slice(start, end))
    if (end >= text.length) break
    start = alignToCharacter(text, end - Math.min(OVERLAP, Math.floor(maxChars / 2)))
  }
  return segments
}

/** Moves an offset out of a surrogate pair. */
const alignToCharacter = (text: string, at: number): number => {
  const code = text.charCodeAt(at)
  return code >= 0xdc00 && code <= 0xdfff ? at - 1 : at
}

/** Returns the texts to embed for a chunk: its windows, each preceded by title and headings. */
function embeddingInputs({ content, context }: Pick<ChunkDraft, 'content' | 'context'>, maxChars: number): string[] {
  if (content.trim() === '') return []
  if (!context) return embeddingWindows(content, maxChars)
  const head = context.slice(0, alignToCharacter(context, Math.floor(maxChars / 4)))
  return embeddingWindows(content, maxChars - head.length - 2).map(segment => `${head}\n\n${segment}`)
}

export type ChunkVectors = Pick<EmbeddedChunk, 'vectors' | 'failed'> & {
  /** Whether it failed because the model refuses the text permanently. */
  refused: boolean
  /** Whether all texts failed for reasons other than their content: the provider is unavailable. */
  down: boolean
}

/** Embeds chunks of a document; see `textVectors`. */
export const chunkVectors = (
  services: Services,
  owner: { project_id: string; document_id: string },
  chunks: readonly Pick<ChunkDraft, 'content' | 'context'>[],
  options: VectorOptions = {},
): Promise<ChunkVectors[]> =>
  textVectors(services, chunks, {
    ...options,
    project_id: owner.project_id,
    purpose: { kind: 'document', ref: owner.document_id },
  })

type VectorOptions = Pick<EmbedOptions, 'timeoutMs' | 'signal' | 'background' | 'admitted'>

/**
 * Embeds texts, each with one or more vectors; a text with a failed window has none. Failures of the provider are
 * values; throws the reason of `signal` and QUOTA_EXCEEDED. Without a configured provider, texts have no vectors and
 * have not failed, because a retry is pointless.
 */
export async function textVectors(
  services: Services,
  texts: readonly Pick<ChunkDraft, 'content' | 'context'>[],
  options: VectorOptions & Pick<EmbedOptions, 'project_id' | 'purpose'>,
): Promise<ChunkVectors[]> {
  const embedder = embedderOf(services)
  if (!embedder.configured) return texts.map(() => ({ vectors: [], failed: false, refused: false, down: false }))
  const inputs = texts.map(text => embeddingInputs(text, services.config.EMBEDDING_MAX_INPUT_CHARS))
  let embedded: (Float32Array | null)[]
  const refusedInputs = new Set<number>()
  let at = 0
  /** Indexes of the windows of each text. */
  const ranges = inputs.map(({ length }) => Array.from({ length }, () => at++))
  const isRefused = ranges.map(range => () => range.some(index => refusedInputs.has(index)))
  try {
    embedded = await embedder.embed(inputs.flat(), { ...options, onRefused: index => void refusedInputs.add(index) })
  } catch (error) {
    options.signal?.throwIfAborted()
    if (error instanceof AppError && error.code === 'QUOTA_EXCEEDED') throw error
    // Provider failures are already logged.
    if (!(error instanceof AppError)) services.log.error({ err: error, ref: options.purpose.ref }, 'embedding failed')
    const down = !isTextRejection(error)
    return inputs.map((windows, index) => ({
      vectors: [],
      failed: windows.length > 0,
      refused: isRefused[index](),
      down: down && windows.length > 0,
    }))
  }
  return ranges.map((range, index) => {
    const windowVectors = range.map(each => embedded[each])
    if (windowVectors.includes(null)) return { vectors: [], failed: true, refused: isRefused[index](), down: false }
    const vectors = (windowVectors as Float32Array[]).filter(vector => !isZero(vector))
    return { vectors, failed: false, refused: false, down: false }
  })
}

/** Assigns IDs, words and vectors to new chunks; see `chunkVectors`. */
export async function embedChunks(
  services: Services,
  owner: { project_id: string; document_id: string },
  drafts: readonly ChunkDraft[],
  options: VectorOptions = {},
): Promise<(EmbeddedChunk & ChunkVectors)[]> {
  const embedded = await chunkVectors(services, owner, drafts, options)
  const words = await indexTexts(drafts.map(({ content }) => content))
  return drafts.map((draft, index) => ({ ...draft, id: newId('dchunk'), words: words[index], ...embedded[index] }))
}
