import { removeVectors, VECTOR_SOURCES } from '../../content/vectors/store.ts'
import { redactEvents, redactFields } from '../../control/events/redact.ts'
import {
  contentUnavailable,
  type EndUserContentEraser,
  type EndUserPurge,
  eraseInBatches,
} from '../../control/retention/erasure.ts'
import { eraseStoredResponses } from '../../core/api/idempotency.ts'
import { lockStores } from '../memories/lock-store.ts'
import { memoryKind } from '../memories/model.ts'
import { deleteMemories } from '../memories/store.ts'
import {
  deleteEntriesOf,
  deleteMemoryEntries,
  type Erasable,
  entriesOfEndUser,
  memoriesOfEndUser,
} from './erase-store.ts'

const without = redactFields('content', 'metadata')

/**
 * Memories that come from an end user's conversations, with what the ledger says of them, and what was stated there without
 * making a memory.
 */
export const memoryContent: EndUserContentEraser = {
  async erase(purge) {
    const { endUser, until, read } = purge
    await eraseInBatches(
      limit => memoriesOfEndUser(read, endUser, until, limit),
      found => eraseMemories(purge, found),
    )
    await eraseInBatches(
      limit => entriesOfEndUser(read, endUser, until, limit),
      found => eraseEntries(purge, found),
    )
    return 'erased'
  },
}

const eraseMemories = ({ services, endUser, write }: EndUserPurge, found: readonly Erasable[]) =>
  write(async tx => {
    const ids = found.map(({ id }) => id)
    await lockStores(
      tx,
      found.map(({ memory_store_id }) => memory_store_id),
    )
    await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: ids })
    const entries = await deleteEntriesOf(tx, ids)
    const erased = await deleteMemories(tx, ids)
    const events = await redactEvents(tx, [{ resource_type: memoryKind.name, ids, without }])
    const kept_answers = await eraseStoredResponses(
      tx,
      services,
      endUser.project_id,
      [...ids, ...entries],
      contentUnavailable(),
    )
    for (const row of erased) {
      const data = { ...memoryKind.present(row), content: null, metadata: null }
      tx.emit(memoryKind, 'deleted', row, { data })
    }
    return { memories: erased.length, memory_entries: entries.length, events, kept_answers }
  })

/** Entries, and what events and answers still say of memories that were deleted before. */
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
