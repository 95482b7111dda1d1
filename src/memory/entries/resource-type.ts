import { resourceType } from '#core/api/resource-type.ts'
import type { MemoryRow } from '../facts/model.ts'
import { findCurrentMemory } from '../facts/store.ts'
import { type MemoryEntryRow, memoryEntryKind } from './model.ts'

/** An entry with its resulting memory, or the current memory that replaced it. */
type EntryWithMemory = MemoryEntryRow & { memory: MemoryRow }

/** Facts in formation templates. Entries are immutable, so a changed text creates another entry. */
export const memoryEntryType = resourceType<EntryWithMemory>(memoryEntryKind as never, {
  update: null,
  exportedWith: 'content',
  delete: 'deleteMemory',
  // Templates are declarative: their facts are not compared with similar ones.
  without: ['supersedes', 'duplicate_threshold', 'supersede_threshold'],
  fixed: ['memory_store_id', 'source_type', 'source_id', 'actor_id'],
  moving: ['content'],
  async find(db, id) {
    const entry = await memoryEntryKind.find(db, id)
    const memory = entry?.memory_id ? await findCurrentMemory(db, entry.memory_id) : null
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
    const unchanged = { memory_store_id, tags, metadata, expires_at, source_type, source_id, actor_id }
    return { operation: 'createMemoryEntry', args: { ...unchanged, ...changed, supersedes } }
  },
  deleting: ({ memory }) => ({ operation: 'deleteMemory', args: { memory_id: memory.id } }),
})
