import type { Services } from '../../core/process/services.ts'
import { chunkVectors } from '../chunks/embed.ts'
import { chunksToEmbed, chunkVectorRows, existingChunks, type UnembeddedChunk } from '../chunks/store.ts'
import { insertVectors, removeVectors, VECTOR_SOURCES } from '../vectors/store.ts'
import type { Space } from './space.ts'
import { lockDocuments, markEmbedded, type Owner } from './store.ts'

/** Chunks read, embedded and written together. */
const CHUNKS = 256

/** What was done; `down` when the provider embedded nothing at all: nothing is noted then. */
export type EmbedProgress = { embedded: number; failed: number; down: boolean }

/**
 * Gives the chunks of documents their vectors of a space where they lack them, or all of them new ones (`again`). No
 * lock is held while the provider works: chunks that are gone by then get nothing, and documents that got others
 * meanwhile are left for the next time. What is done once stays done, so a run that is killed costs no more than its
 * last calls.
 */
export async function embedDocuments(
  services: Services,
  space: Space,
  documents: readonly Owner[],
  { signal, again = false }: { signal: AbortSignal; again?: boolean },
): Promise<EmbedProgress> {
  const projects = new Map(documents.map(({ id, project_id }) => [id, project_id]))
  const failedDocuments = new Set<string>()
  const skipped: string[] = []
  const done: EmbedProgress = { embedded: 0, failed: 0, down: false }
  for (let after: UnembeddedChunk | null = null; ; ) {
    const chunks: readonly UnembeddedChunk[] = await chunksToEmbed(
      services.pool,
      again ? null : space,
      [...projects.keys()],
      after,
      CHUNKS,
    )
    if (chunks.length === 0) break
    after = chunks[chunks.length - 1]
    const { made, down } = await embedAll(services, projects, chunks, signal)
    const ready = made.filter(({ vectors }) => vectors.length > 0)
    if (down && ready.length === 0) return { ...done, down: true }
    for (const { chunk, vectors, failed } of made) {
      if (vectors.length === 0) skipped.push(chunk.id)
      if (!failed) continue
      done.failed++
      failedDocuments.add(chunk.document_id)
    }
    if (ready.length > 0) await store(services, space, projects, ready)
    done.embedded += ready.length
  }
  await services.write(async tx => {
    const ids = [...projects.keys()]
    await lockDocuments(tx, ids)
    const outcomes = ids.map(id => ({ id, failed: failedDocuments.has(id) }))
    await markEmbedded(tx, space, outcomes, skipped, services.clock.now())
  })
  return done
}

type Made = { chunk: UnembeddedChunk; vectors: Float32Array[]; failed: boolean }

/** Asks for the vectors of every document at once: the embedder puts small ones into one call. */
async function embedAll(
  services: Services,
  projects: ReadonlyMap<string, string>,
  chunks: readonly UnembeddedChunk[],
  signal: AbortSignal,
): Promise<{ made: Made[]; down: boolean }> {
  const groups = [...Map.groupBy(chunks, chunk => chunk.document_id)]
  const answers = await Promise.all(
    groups.map(([document_id, mine]) => {
      const owner = { document_id, project_id: projects.get(document_id) as string }
      return chunkVectors(services, owner, mine, { signal, background: true })
    }),
  )
  const made = groups.flatMap(([, mine], group) =>
    mine.map((chunk, index) => {
      const { vectors, failed } = answers[group][index]
      return { chunk, vectors, failed }
    }),
  )
  return { made, down: answers.flat().some(answer => answer.down) }
}

const store = (
  services: Services,
  space: Space,
  projects: ReadonlyMap<string, string>,
  ready: readonly Made[],
): Promise<void> =>
  services.write(async tx => {
    await lockDocuments(tx, [...new Set(ready.map(({ chunk }) => chunk.document_id))])
    const there = await existingChunks(
      tx,
      ready.map(({ chunk }) => chunk.id),
    )
    // Those of other spaces too; what was embedded in more windows than now would leave some behind.
    await removeVectors(tx, { source: VECTOR_SOURCES.document, ref_ids: [...there] })
    const rows = ready
      .filter(({ chunk }) => there.has(chunk.id))
      .flatMap(({ chunk: { id, document_id }, vectors }) =>
        chunkVectorRows({ document_id, project_id: projects.get(document_id) as string }, [{ id, vectors }], space),
      )
    await insertVectors(tx, rows)
  })
