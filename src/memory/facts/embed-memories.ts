import { textVectors } from '#content/index/chunks/embed.ts'
import type { Space } from '#content/index/embeddings/space.ts'
import { insertVectors } from '#content/index/vectors/store.ts'
import type { Services } from '#core/base/services.ts'
import { type BareMemory, dropVectors, lockUnchanged, memoryVectorRows, settleEmbedding } from './store.ts'

/** Result of embedding memories. `down`: the provider returned no vector, and the memories are unchanged. */
export type MemoryEmbedProgress = { embedded: number; failed: number; down: boolean }

/**
 * Embeds memories for a space. No lock is held during calls of the provider; memories changed or invalidated in between
 * are skipped.
 */
export async function embedMemories(
  services: Services,
  space: Space,
  memories: readonly BareMemory[],
  { signal }: { signal: AbortSignal },
): Promise<MemoryEmbedProgress> {
  const groups = [...Map.groupBy(memories, ({ memory_store_id }) => memory_store_id)]
  const vectorsByGroup = await Promise.all(
    groups.map(([ref, group]) =>
      textVectors(
        services,
        group.map(({ content }) => ({ content, context: null })),
        { project_id: group[0].project_id, purpose: { kind: 'memory', ref }, signal, background: true },
      ),
    ),
  )
  const results = groups.flatMap(([, group], at) =>
    group.map((memory, index) => ({ memory, ...vectorsByGroup[at][index] })),
  )
  const failed = results.filter(row => row.failed).length
  if (results.some(({ down }) => down) && results.every(({ vectors }) => vectors.length === 0))
    return { embedded: 0, failed, down: true }
  await services.write(async tx => {
    const owners = new Map((await lockUnchanged(tx, memories)).map(({ id, actor_id }) => [id, actor_id]))
    const current = results
      .filter(({ memory, down }) => owners.has(memory.id) && !down)
      .map(row => ({ ...row, memory: { ...row.memory, actor_id: owners.get(row.memory.id) ?? null } }))
    const embedded = current.filter(row => !row.failed)
    await dropVectors(
      tx,
      embedded.map(({ memory }) => memory.id),
    )
    await insertVectors(
      tx,
      embedded.flatMap(({ memory, vectors }) => memoryVectorRows(memory, vectors, space)),
    )
    await settleEmbedding(
      tx,
      space,
      current.map(({ memory, vectors, failed }) => ({ id: memory.id, embedded: vectors.length > 0, failed })),
    )
  })
  return { embedded: results.length - failed, failed, down: false }
}
