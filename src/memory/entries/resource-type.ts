import { resourceType } from '../../core/api/resource-type.ts'
import type { MemoryRow } from '../memories/model.ts'
import { holdingMemory } from '../memories/store.ts'
import { type MemoryEntryRow, memoryEntryKind } from './model.ts'

/** An entry with the memory that it resolved into, or the one that replaced that since. */
type Resolved = MemoryEntryRow & { memory: MemoryRow }

/** Facts of templates: entries of the ledger never change, so that another text is another entry. */
export const memoryEntryType = resourceType<Resolved>(memoryEntryKind as never, {
  update: null,
  delete: 'deleteMemory',
  // Templates say what there is; what is near to it is none of their business.
  without: ['supersedes', 'duplicate_threshold', 'supersede_threshold'],
  fixed: ['memory_store_id', 'source_type', 'source_id', 'actor_id'],
  moving: ['content'],
  async find(db, id) {
    const entry = await memoryEntryKind.find(db, id)
    const memory = entry?.memory_id ? await holdingMemory(db, entry.memory_id) : null
    return entry && memory && { ...entry, memory }
  },
  present: ({ memory, ...entry }) => {
    const { content, tags, metadata, expires_at, source_type, source_id, actor_id } = memory
    const facts = { content, tags, metadata, expires_at, source_type, source_id, actor_id }
    return { ...memoryEntryKind.present(entry), ...facts }
  },
  changing({ memory }, changed) {
    if (changed.content === undefined) return { operation: 'updateMemory', args: { memory_id: memory.id, ...changed } }
    const { id: supersedes, memory_store_id, tags, metadata, expires_at, source_type, source_id, actor_id } = memory
    const kept = { memory_store_id, tags, metadata, expires_at, source_type, source_id, actor_id }
    return { operation: 'createMemoryEntry', args: { ...kept, ...changed, supersedes } }
  },
  deleting: ({ memory }) => ({ operation: 'deleteMemory', args: { memory_id: memory.id } }),
})
