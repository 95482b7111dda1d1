import { raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type EmbeddedChunk, embedChunks } from '../index/chunks/embed.ts'
import type { ChunkDraft, ChunkSettings } from '../index/chunks/model.ts'
import { splitIntoPages } from '../index/chunks/pages.ts'
import { ChunkLimitError, splitPages } from '../index/chunks/split.ts'
import { type ChunkParts, chunkCtes } from '../index/chunks/store.ts'
import { embedderOf } from '../index/embeddings/embedder.ts'
import { currentSpace, type Space } from '../index/embeddings/space.ts'
import { indexTexts } from '../index/words/index-text.ts'
import type { DocumentRow, StoredText } from './model.ts'

/** Text to split, with its settings and the title that `auto` embeds with every chunk. */
export type SplitSource = { text: StoredText; settings: ChunkSettings; title: string | null }

/** Chunks to insert; their vectors belong to `space`. */
export type SplitText = {
  chunks: EmbeddedChunk[]
  space: Space | null
}

/** Splits a text into chunks. Raises VALIDATION_FAILED above the maximum number of chunks. */
async function splitSource(services: Services, { text, settings, title }: SplitSource): Promise<ChunkDraft[]> {
  try {
    return await splitPages(splitIntoPages(text.content, text.pages), settings, { title, limits: services.config })
  } catch (error) {
    if (error instanceof ChunkLimitError)
      raiseInvalid({ code: 'TOO_MANY_CHUNKS', path: 'chunk_size', message: error.message })
    throw error
  }
}

/** Splits a text without embedding it, and so without calling a provider; may run under a lock. */
export async function splitText(services: Services, source: SplitSource): Promise<SplitText> {
  const failed = embedderOf(services).configured
  const drafts = await splitSource(services, source)
  const words = await indexTexts(drafts.map(({ content }) => content))
  return {
    chunks: drafts.map((draft, index) => ({ ...draft, id: newId('dchunk'), words: words[index], vectors: [], failed })),
    space: null,
  }
}

/**
 * Splits a text and embeds as many chunks as possible within EMBEDDING_INLINE_TIMEOUT_MS. It may wait for a provider,
 * so the caller must not hold a connection or a lock.
 */
export async function splitAndEmbed(
  services: Services,
  owner: { project_id: string; document_id: string },
  source: SplitSource,
): Promise<SplitText> {
  const drafts = await splitSource(services, source)
  const chunks = await embedChunks(services, owner, drafts, {
    timeoutMs: services.config.EMBEDDING_INLINE_TIMEOUT_MS,
  })
  return { chunks, space: chunks.some(chunk => chunk.vectors.length > 0) ? await currentSpace(services) : null }
}

/** Returns the chunk counts of a document; `embed_since` schedules retries for chunks without vectors. */
export function chunkCounts(
  services: Services,
  { chunks }: SplitText,
): Pick<DocumentRow, 'chunk_count' | 'total_chunks' | 'embedded_chunks' | 'embed_since' | 'embedding'> {
  return {
    chunk_count: chunks.length,
    total_chunks: chunks.length,
    embedded_chunks: chunks.filter(({ vectors }) => vectors.length > 0).length,
    embed_since: chunks.some(({ failed }) => failed) ? services.clock.now().toISOString() : null,
    embedding: null,
  }
}

/** CTEs that insert the chunks and vectors of a document that has none. */
export const splitCtes = (
  { config }: Services,
  { id, project_id, search_language }: Pick<DocumentRow, 'id' | 'project_id' | 'search_language'>,
  { chunks, space }: SplitText,
): ChunkParts =>
  chunkCtes({ project_id, document_id: id, search_language }, chunks, {
    space,
    textSearchConfig: config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
  })
