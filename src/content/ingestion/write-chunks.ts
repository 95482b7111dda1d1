import { isDeepStrictEqual } from 'node:util'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type DocumentRow, documentKind, type StoredText } from '../documents/model.ts'
import { findDocumentText, firstTextCtes, setDocumentText, setTextPages, updateDocument } from '../documents/store.ts'
import { chunkSettings } from '../index/chunks/chunk-settings.ts'
import { embedChunks } from '../index/chunks/embed.ts'
import type { ChunkDraft, PageText } from '../index/chunks/model.ts'
import { pageStarts } from '../index/chunks/pages.ts'
import { joinPages } from '../index/chunks/split.ts'
import { type ChunkParts, chunkCtes, insertChunks } from '../index/chunks/store.ts'
import { currentSpace } from '../index/embeddings/space.ts'
import { inStage } from './stages.ts'
import { findVersionSettings, type IngestionAttempt, setTotals, type Totals } from './store.ts'
import { DOCUMENT_SETTLED_CHANNEL } from './wait.ts'

/** Chunks embedded and written per transaction. */
const BATCH = 64

/**
 * Embeds chunks without a time limit and writes them with their vectors in batches, each in a transaction fenced by the
 * claim; the last batch completes the document. After the first failed call of a provider, the remaining chunks are
 * written without vectors and embedded later. Throws ClaimLostError, and the reason of the attempt's signal.
 */
export async function writeChunks(
  attempt: IngestionAttempt,
  { chunks, pages, totals }: { chunks: ChunkDraft[]; pages: PageText[]; totals: Totals },
): Promise<void> {
  const { services, entity: document, signal } = attempt
  const owner = {
    project_id: document.project_id,
    document_id: document.id,
    search_language: totals.search_language,
  }
  const options = {
    space: await currentSpace(services),
    textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
  }
  // Joined before a lock is held, because long texts take a while.
  const text = { content: joinPages(pages), pages: pageStarts(pages) }
  let hasUnembedded = false
  let isProviderDown = false
  const embed = (from: number, to: number) =>
    inStage('embed', async note => {
      const batch = await embedChunks(services, owner, chunks.slice(from, to), {
        signal,
        timeoutMs: isProviderDown ? 0 : undefined,
        admitted: true,
      })
      hasUnembedded ||= batch.some(({ failed }) => failed)
      isProviderDown ||= batch.some(({ down }) => down)
      note({ chunks: batch.length })
      return batch
    })
  let from = 0
  if (chunks.length > BATCH) await attempt.write(tx => setTotals(tx, document.id, totals))
  for (; from + BATCH < chunks.length; from += BATCH) {
    const batch = await embed(from, from + BATCH)
    await inStage('write', note => {
      note({ chunks: batch.length })
      return attempt.write(tx => insertChunks(tx, owner, batch, options))
    })
    await injectFault(services, 'ingestion_batch')
  }
  const batch = await embed(from, chunks.length)
  await injectFault(services, 'ingestion_written')
  const complete = (tx: Tx, locked: DocumentRow) => {
    const ready: DocumentRow = {
      ...locked,
      ...totals,
      chunk_count: locked.chunk_count + batch.length,
      embedded_chunks: locked.embedded_chunks + batch.filter(({ vectors }) => vectors.length > 0).length,
      embed_since: hasUnembedded ? services.clock.now().toISOString() : null,
      embedding: null,
    }
    return completeIngestion(tx, ready, attempt.claim, text, chunkCtes(owner, batch, options))
  }
  await inStage('write', note => {
    note({ chunks: batch.length })
    return attempt.settle(complete)
  })
}

/**
 * Makes a document ready with the ingested text. The first text belongs to version 1; a later one creates a version if
 * the text or the chunk settings changed. The caller has locked the document and ended the attempt.
 * @param document the locked row with the settings and counts of its new chunks
 * @param chunks the last batch, written in the same statement
 */
async function completeIngestion(
  tx: Tx,
  document: DocumentRow,
  { principal }: IngestionAttempt['claim'],
  text: StoredText,
  chunks: ChunkParts,
): Promise<void> {
  const isFirstText = document.text_version === null
  const ready: DocumentRow = { ...document, status: 'ready', error: null }
  if (isFirstText) {
    ready.text_version = 1
  } else {
    const stored = await findDocumentText(tx, document.id)
    const textChanged = stored?.content !== text.content
    if (textChanged) await setDocumentText(tx, document, text, document.version + 1)
    else if (!isDeepStrictEqual(stored.pages, text.pages)) await setTextPages(tx, document.id, text.pages)
    const settings = await findVersionSettings(tx, document.id, document.version)
    if (textChanged || !isDeepStrictEqual(settings, chunkSettings(document))) {
      ready.version += 1
      if (textChanged) ready.text_version = ready.version
    }
  }
  const created_by = { type: principal.type, id: principal.id }
  const stored = await updateDocument(tx, ready, ready.version === document.version ? undefined : { created_by }, {
    ...chunks,
    ctes: isFirstText ? [...firstTextCtes(document, text), ...chunks.ctes] : chunks.ctes,
  })
  tx.emit(documentKind, 'ingested', stored, {
    extra: { chunk_count: stored.chunk_count },
  })
  tx.notify(DOCUMENT_SETTLED_CHANNEL, stored.id)
}
