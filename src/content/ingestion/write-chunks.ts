import { type ActiveClaim, ClaimLostError } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { embedChunks } from '../chunks/embed.ts'
import type { ChunkDraft, PageText } from '../chunks/model.ts'
import { pageStarts } from '../chunks/pages.ts'
import { joinPages } from '../chunks/split.ts'
import { chunkCtes, insertChunks } from '../chunks/store.ts'
import type { DocumentRow } from '../documents/model.ts'
import { lockDocument } from '../documents/store.ts'
import { currentSpace } from '../embeddings/space.ts'
import { completeIngestion } from './complete-ingestion.ts'
import { type IngestionClaim, ingestionWork, setTotals, type Totals } from './store.ts'

/** Chunks that are embedded and written together. */
const BATCH = 64

/**
 * Embeds chunks, which takes as long as it takes, and writes them with their vectors, batch by batch, each in a
 * transaction that the claim guards. The last one makes the document ready; what fits into one batch is written with
 * it. A provider that is away is waited for once; what is left gets its vectors later. Raises Superseded when the claim
 * is lost, the reason of its signal when that is aborted.
 */
export async function writeChunks(
  services: Services,
  hold: ActiveClaim<IngestionClaim>,
  document: DocumentRow,
  { chunks, pages, totals }: { chunks: ChunkDraft[]; pages: PageText[]; totals: Totals },
): Promise<void> {
  const owner = { project_id: document.project_id, document_id: document.id }
  const options = {
    space: await currentSpace(services),
    textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
  }
  // Long texts take a while to join, which no lock has to wait for.
  const text = { content: joinPages(pages), pages: pageStarts(pages) }
  let unembedded = false
  let away = false
  const embed = async (from: number, to: number) => {
    const batch = await embedChunks(services, owner, chunks.slice(from, to), {
      signal: hold.signal,
      timeoutMs: away ? 0 : undefined,
      admitted: true,
    })
    unembedded ||= batch.some(({ failed }) => failed)
    away ||= batch.some(({ down }) => down)
    return batch
  }
  let from = 0
  if (chunks.length > BATCH)
    await hold.write(async tx => {
      await hold.guard(tx)
      await setTotals(tx, document.id, totals)
    })
  for (; from + BATCH < chunks.length; from += BATCH) {
    const batch = await embed(from, from + BATCH)
    await hold.write(async tx => {
      await hold.guard(tx)
      await insertChunks(tx, owner, batch, options)
    })
    await injectFault(services, 'ingestion_batch')
  }
  const batch = await embed(from, chunks.length)
  await injectFault(services, 'ingestion_written')
  await hold.write(async tx => {
    const locked = await lockDocument(tx, document.id)
    if (!locked || !(await ingestionWork.end(tx, hold.claim))) throw new ClaimLostError()
    const ready: DocumentRow = {
      ...locked,
      ...totals,
      chunk_count: locked.chunk_count + batch.length,
      embedded_chunks: locked.embedded_chunks + batch.filter(({ vectors }) => vectors.length > 0).length,
      embed_since: unembedded ? services.clock.now().toISOString() : null,
    }
    await completeIngestion(tx, ready, hold.claim, text, chunkCtes(owner, batch, options))
  })
}
