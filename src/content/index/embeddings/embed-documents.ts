import type { Services } from '#core/base/services.ts'
import { type ChunkVectors, chunkVectors } from '../chunks/embed.ts'
import { chunkVectorRows, findExistingChunks, listChunksToEmbed, type UnembeddedChunk } from '../chunks/store.ts'
import { insertVectors, removeVectors, VECTOR_SOURCES } from '../vectors/store.ts'
import { reportChanges } from './partial.ts'
import type { Space } from './space.ts'
import { lockDocuments, markEmbedded, type Owner } from './store.ts'

/** Chunks read, embedded and written per batch. */
const CHUNK_BATCH = 256

/** Result of embedding documents. `down`: the provider returned no vector, and the documents are unchanged. */
export type EmbedProgress = { embedded: number; failed: number; down: boolean }

/**
 * Embeds the chunks of documents that have no vectors of a space, or all chunks (`again`). No lock is held during calls
 * of the provider: chunks deleted in between are skipped, and documents with new chunks are left to the next pass. Each
 * batch is committed, so an interrupted pass repeats only its last calls.
 */
export async function embedDocuments(
  services: Services,
  space: Space,
  documents: readonly Owner[],
  { signal, again = false }: { signal: AbortSignal; again?: boolean },
): Promise<EmbedProgress> {
  const projects = new Map(documents.map(({ id, project_id }) => [id, project_id]))
  const failedDocuments = new Set<string>()
  const refusedDocuments = new Set<string>()
  const skipped: string[] = []
  const done: EmbedProgress = { embedded: 0, failed: 0, down: false }
  for (let after: UnembeddedChunk | null = null; ; ) {
    const chunks: readonly UnembeddedChunk[] = await listChunksToEmbed(
      services.pool,
      again ? null : space,
      [...projects.keys()],
      after,
      CHUNK_BATCH,
    )
    if (chunks.length === 0) break
    after = chunks[chunks.length - 1]
    const { results, down } = await embedAll(services, projects, chunks, signal)
    const embedded = results.filter(({ vectors }) => vectors.length > 0)
    if (down && embedded.length === 0) return { ...done, down: true }
    for (const { chunk, vectors, failed, refused } of results) {
      if (vectors.length === 0) skipped.push(chunk.id)
      if (!failed) continue
      done.failed++
      const causes = refused ? refusedDocuments : failedDocuments
      causes.add(chunk.document_id)
    }
    if (embedded.length > 0) await storeVectors(services, space, projects, embedded)
    done.embedded += embedded.length
  }
  await services.write(async tx => {
    const ids = [...projects.keys()]
    await lockDocuments(tx, ids)
    const outcomes = ids.map(id => ({ id, failed: failedDocuments.has(id), refused: refusedDocuments.has(id) }))
    await reportChanges(tx, await markEmbedded(tx, space, outcomes, skipped, services.clock.now()))
  })
  return done
}

type ChunkResult = { chunk: UnembeddedChunk } & Pick<ChunkVectors, 'vectors' | 'failed' | 'refused'>

/** Embeds the chunks of all documents concurrently, so that the embedder combines small ones into one call. */
async function embedAll(
  services: Services,
  projects: ReadonlyMap<string, string>,
  chunks: readonly UnembeddedChunk[],
  signal: AbortSignal,
): Promise<{ results: ChunkResult[]; down: boolean }> {
  const groups = [...Map.groupBy(chunks, chunk => chunk.document_id)]
  const vectorsByGroup = await Promise.all(
    groups.map(([document_id, documentChunks]) => {
      const owner = { document_id, project_id: projects.get(document_id) as string }
      return chunkVectors(services, owner, documentChunks, { signal, background: true })
    }),
  )
  const results = groups.flatMap(([, documentChunks], group) =>
    documentChunks.map((chunk, index) => {
      const { vectors, failed, refused } = vectorsByGroup[group][index]
      return { chunk, vectors, failed, refused }
    }),
  )
  return { results, down: vectorsByGroup.flat().some(result => result.down) }
}

const storeVectors = (
  services: Services,
  space: Space,
  projects: ReadonlyMap<string, string>,
  results: readonly ChunkResult[],
): Promise<void> =>
  services.write(async tx => {
    await lockDocuments(tx, [...new Set(results.map(({ chunk }) => chunk.document_id))])
    const existing = await findExistingChunks(
      tx,
      results.map(({ chunk }) => chunk.id),
    )
    // All vectors of the chunks, in every space: the number of windows may have decreased.
    await removeVectors(tx, { source: VECTOR_SOURCES.document, ref_ids: [...existing] })
    const rows = results
      .filter(({ chunk }) => existing.has(chunk.id))
      .flatMap(({ chunk: { id, document_id }, vectors }) =>
        chunkVectorRows({ document_id, project_id: projects.get(document_id) as string }, [{ id, vectors }], space),
      )
    await insertVectors(tx, rows)
  })
