import { AppError } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Services } from '../../core/process/services.ts'
import { embedderOf, isTextRejection } from '../embeddings/embedder.ts'
import { isZero } from '../embeddings/local.ts'
import type { EmbedOptions } from '../embeddings/model.ts'
import type { ChunkDraft } from './model.ts'

/** A chunk with its vectors, one a window of its text; none when it could not be embedded, or has nothing to embed. */
export type EmbeddedChunk = ChunkDraft & {
  id: string
  vectors: Float32Array[]
  /** It has no vectors yet, and another try may give it some. */
  failed: boolean
}

const OVERLAP = 200
const MAX_SEGMENTS = 64

/**
 * The windows in which a text is embedded: `maxChars` characters each, 200 of them shared with the one before, at most 64
 *. No character is cut in two.
 */
export function embeddingWindows(text: string, maxChars: number): string[] {
  const segments: string[] = []
  for (let start = 0; segments.length < MAX_SEGMENTS; ) {
    const end = whole(text, start + maxChars)
    segments.push(text.slice(start, end))
    if (end >= text.length) break
    start = whole(text, end - Math.min(OVERLAP, Math.floor(maxChars / 2)))
  }
  return segments
}

/** A border that does not part a surrogate pair. */
const whole = (text: string, at: number): number => {
  const code = text.charCodeAt(at)
  return code >= 0xdc00 && code <= 0xdfff ? at - 1 : at
}

/** What a chunk is embedded as: its windows, each under the title and the headings it stands below. */
function inputsOf({ content, context }: Pick<ChunkDraft, 'content' | 'context'>, maxChars: number): string[] {
  if (content.trim() === '') return []
  if (!context) return embeddingWindows(content, maxChars)
  const head = context.slice(0, whole(context, Math.floor(maxChars / 4)))
  return embeddingWindows(content, maxChars - head.length - 2).map(segment => `${head}\n\n${segment}`)
}

export type ChunkVectors = Pick<EmbeddedChunk, 'vectors' | 'failed'> & {
  /** It failed with all others, and not for what they say: the provider is away. */
  down: boolean
}

/** Vectors of chunks of one document; see `textVectors`. */
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
 * Vectors of texts, one or more of each. A text whose embedding failed in any window has none. Never throws for
 * what a provider does; throws the reason of `signal` when that is aborted, and QUOTA_EXCEEDED. Without a configured provider
 * nothing has failed: there is nothing to try again with.
 */
export async function textVectors(
  services: Services,
  texts: readonly Pick<ChunkDraft, 'content' | 'context'>[],
  options: VectorOptions & Pick<EmbedOptions, 'project_id' | 'purpose'>,
): Promise<ChunkVectors[]> {
  const embedder = embedderOf(services)
  if (!embedder.configured) return texts.map(() => ({ vectors: [], failed: false, down: false }))
  const inputs = texts.map(text => inputsOf(text, services.config.EMBEDDING_MAX_INPUT_CHARS))
  let found: (Float32Array | null)[]
  try {
    found = await embedder.embed(inputs.flat(), options)
  } catch (error) {
    options.signal?.throwIfAborted()
    if (error instanceof AppError && error.code === 'QUOTA_EXCEEDED') throw error
    // What a provider did is in the log already.
    if (!(error instanceof AppError)) services.log.error({ err: error, ref: options.purpose.ref }, 'texts not embedded')
    const down = !isTextRejection(error)
    return inputs.map(windows => ({ vectors: [], failed: windows.length > 0, down: down && windows.length > 0 }))
  }
  let at = 0
  return inputs.map(windows => {
    const mine = found.slice(at, at + windows.length)
    at += windows.length
    if (mine.includes(null)) return { vectors: [], failed: true, down: false }
    const vectors = (mine as Float32Array[]).filter(vector => !isZero(vector))
    return { vectors, failed: false, down: false }
  })
}

/** Gives chunks that were just cut their ids and their vectors; see `chunkVectors`. */
export async function embedChunks(
  services: Services,
  owner: { project_id: string; document_id: string },
  drafts: readonly ChunkDraft[],
  options: VectorOptions = {},
): Promise<(EmbeddedChunk & ChunkVectors)[]> {
  const embedded = await chunkVectors(services, owner, drafts, options)
  return drafts.map((draft, index) => ({ ...draft, id: newId('dchunk'), ...embedded[index] }))
}
