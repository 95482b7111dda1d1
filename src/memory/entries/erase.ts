import { removeVectors, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { redactEvents, redactFields } from '#control/events/redact.ts'
import {
  type Counts,
  contentUnavailable,
  type EndUserContentEraser,
  type EndUserPurge,
  eraseInBatches,
} from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockStores } from '../facts/lock-store.ts'
import { memoryKind } from '../facts/model.ts'
import { deleteMemories } from '../facts/store.ts'
import {
  deleteEntriesOfMemories,
  deleteMemoryEntries,
  listEntriesOfEndUser,
  listMemoriesOfEndUser,
  type MemoryRef,
} from './erase-store.ts'

const without = redactFields('content', 'metadata')

/** Erases memories of an end user and from its conversations, with their entries, and entries without a memory. */
export const memoryContent: EndUserContentEraser = {
  async erase(purge) {
    const { services, endUser, until, read, write } = purge
    await eraseInBatches(
      limit => listMemoriesOfEndUser(read, endUser, until, limit),
      memories => write(tx => eraseMemories(tx, services, endUser.project_id, memories)),
    )
    await eraseInBatches(
      limit => listEntriesOfEndUser(read, endUser, until, limit),
      ids => eraseEntries(purge, ids),
    )
    return 'erased'
  },
}

/** Deletes memories with their vectors and entries, and their content in events and stored responses. */
export async function eraseMemories(
  tx: Tx,
  services: Services,
  projectId: string,
  memories: readonly MemoryRef[],
): Promise<Counts> {
  const ids = memories.map(({ id }) => id)
  await lockStores(
    tx,
    memories.map(({ memory_store_id }) => memory_store_id),
  )
  await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: ids })
  const entries = await deleteEntriesOfMemories(tx, ids)
  const erased = await deleteMemories(tx, ids)
  const events = await redactEvents(tx, [{ resource_type: memoryKind.name, ids, without }])
  const kept_answers = await eraseStoredResponses(tx, services, projectId, [...ids, ...entries], contentUnavailable())
  for (const row of erased) {
    const data = { ...memoryKind.present(row), content: null, metadata: null }
    tx.emit(memoryKind, 'deleted', row, { data })
  }
  return { memories: erased.length, memory_entries: entries.length, events, kept_answers }
}

/** Erases entries, and the content of memories deleted earlier in events and stored responses. */
const eraseEntries = ({ services, endUser, write }: EndUserPurge, ids: readonly string[]) =>
  write(async tx => {
    const erased = await deleteMemoryEntries(tx, ids)
    const memories = [...new Set(erased.flatMap(id => id ?? []))]
    const events = await redactEvents(tx, [{ resource_type: memoryKind.name, ids: memories, without }])
    const kept_answers = await eraseStoredResponses(
      tx,
      services,
      endUser.project_id,
      [...ids, ...memories],
      contentUnavailable(),
    )
    return { memory_entries: erased.length, events, kept_answers }
  })
