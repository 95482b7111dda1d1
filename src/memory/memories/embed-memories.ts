import { textVectors } from '../../content/chunks/embed.ts'
import type { Space } from '../../content/embeddings/space.ts'
import { insertVectors } from '../../content/vectors/store.ts'
import type { Services } from '../../core/process/services.ts'
import { type BareMemory, dropVectors, lockUnchanged, memoryVectorRows, settleEmbedding } from './store.ts'

/** What was done; `down` when the provider embedded nothing at all: nothing is noted then. */
export type MemoryEmbedProgress = { embedded: number; failed: number; down: boolean }

/**
 * Gives memories their vectors of a space. No lock is held while the provider works: those that were changed or ended by
 * then are left as they are.
 */
export async function embedMemories(
  services: Services,
  space: Space,
  memories: readonly BareMemory[],
  { signal }: { signal: AbortSignal },
): Promise<MemoryEmbedProgress> {
  const groups = [...Map.groupBy(memories, ({ memory_store_id }) => memory_store_id)]
  const answers = await Promise.all(
    groups.map(([ref, mine]) =>
      textVectors(
        services,
        mine.map(({ content }) => ({ content, context: null })),
        { project_id: mine[0].project_id, purpose: { kind: 'memory', ref }, signal, background: true },
      ),
    ),
  )
  const made = groups.flatMap(([, mine], group) => mine.map((memory, index) => ({ memory, ...answers[group][index] })))
  const failed = made.filter(row => row.failed).length
  if (made.some(({ down }) => down) && made.every(({ vectors }) => vectors.length === 0))
    return { embedded: 0, failed, down: true }
  await services.write(async tx => {
    const there = new Map((await lockUnchanged(tx, memories)).map(({ id, actor_id }) => [id, actor_id]))
    const mine = made
      .filter(({ memory, down }) => there.has(memory.id) && !down)
      .map(row => ({ ...row, memory: { ...row.memory, actor_id: there.get(row.memory.id) ?? null } }))
    const ready = mine.filter(row => !row.failed)
    await dropVectors(
      tx,
      ready.map(({ memory }) => memory.id),
    )
    await insertVectors(
      tx,
      ready.flatMap(({ memory, vectors }) => memoryVectorRows(memory, vectors, space)),
    )
    await settleEmbedding(
      tx,
      space,
      mine.map(({ memory, vectors, failed }) => ({ id: memory.id, embedded: vectors.length > 0, failed })),
    )
  })
  return { embedded: made.length - failed, failed, down: false }
}
