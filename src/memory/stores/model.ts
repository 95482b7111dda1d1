import { z } from 'zod'
import { removeVectors } from '../../content/vectors/store.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { sql } from '../../core/db/sql.ts'
import { lockStores } from '../memories/lock-store.ts'

const threshold = z.number().min(0).max(1)

/** Cosines from which on a fact is taken for one that is known, as a store or one write says. */
export const thresholds = {
  duplicate_threshold: threshold
    .nullable()
    .describe('Cosine from which on a fact counts as one that the store has; null for 0.95'),
  supersede_threshold: threshold
    .nullable()
    .describe('Cosine from which on a fact replaces the one it is near to; below duplicate_threshold; null for 0.90'),
}

/** Memories of one end user that hold in a store that says nothing else. */
export const ACTOR_MEMORY_LIMIT = 500

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show; several stores may have the same'),
  description: z.string().max(16_384).nullable().describe('What the store is for'),
  ...thresholds,
  actor_memory_limit: z
    .int()
    .min(1)
    .max(100_000)
    .nullable()
    .describe(
      `Memories that may hold of one end user; one more retires the oldest. Null for ${ACTOR_MEMORY_LIMIT}; memories without an end user are not limited`,
    ),
}

export const MemoryStore = record(
  'MemoryStore',
  { ...fields, memory_count: z.int().describe('Memories that hold now') },
  { tags: true },
)

export const MemoryStoreInput = createBody(
  'MemoryStoreInput',
  { ...fields, tags: TagInput.describe('Tags') },
  ['name'],
  { name: 'customers' },
)

export const MemoryStorePatch = patchBody(
  'MemoryStorePatch',
  {
    ...fields,
    tags: TagInput.nullable()
      .transform(tags => tags ?? {})
      .describe('Replaces the tags; null clears them'),
  },
  { name: 'customers' },
)

export const memoryStoreKind = kind({
  name: 'memory_store',
  prefix: 'mstore',
  table: 'memory_stores',
  // Whoever writes a memory refers to it.
  shared: true,
  lockFirst: (db, id) => lockStores(db, [id]),
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: MemoryStore,
  // Those whose time is over and that no sweep has seen yet are found by memories_expiring.
  computed: {
    memory_count: sql.fragment`t.valid_count - (
      select count(*)::int from memories m
      where m.memory_store_id = t.id and m.invalidated_at is null and m.expires_at <= now())`,
  },
  hidden: { valid_count: z.int(), marked_count: z.int() },
  events: ['created', 'updated', 'deleted'],
  async remove(tx, row) {
    tx.emit(memoryStoreKind, 'deleted', row)
    await removeVectors(tx, { container_id: row.id })
    await memoryStoreKind.delete(tx, row.id)
  },
})
export type MemoryStoreRow = z.output<typeof memoryStoreKind.row>
