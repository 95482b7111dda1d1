import { z } from 'zod'
import { removeVectors } from '#content/index/vectors/store.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { sql } from '#core/db/sql.ts'
import { lockStores } from '../facts/lock-store.ts'

const threshold = z.number().min(0).max(1)

/** Cosine thresholds of a store or a write. */
export const thresholds = {
  duplicate_threshold: threshold
    .nullable()
    .describe('Minimum cosine at which a fact is a duplicate of a stored one. Null for the default, 0.95.'),
  supersede_threshold: threshold
    .nullable()
    .describe(
      'Minimum cosine at which a fact replaces the nearest stored one; less than duplicate_threshold. Null for the default, 0.90.',
    ),
}

/** Default limit of current memories per end user in a store. */
export const ACTOR_MEMORY_LIMIT = 500

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name; not unique'),
  description: z.string().max(16_384).nullable().describe('Purpose of the store'),
  ...thresholds,
  actor_memory_limit: z
    .int()
    .min(1)
    .max(100_000)
    .nullable()
    .describe(
      `Maximum number of current memories per end user; another one invalidates the oldest. Memories without an end user are not limited. Null for the default, ${ACTOR_MEMORY_LIMIT}.`,
    ),
}

export const MemoryStore = record(
  'MemoryStore',
  { ...fields, memory_count: z.int().describe('Number of current memories') },
  { tags: true },
)

export const MemoryStoreInput = createBody(
  'MemoryStoreInput',
  { ...fields, tags: TagInput.describe('Tags of the memory store') },
  ['name'],
  { name: 'customers' },
)

export const MemoryStorePatch = patchBody(
  'MemoryStorePatch',
  {
    ...fields,
    tags: TagInput.nullable()
      .transform(tags => tags ?? {})
      .describe('Tags that replace the current tags; null clears them'),
  },
  { name: 'customers' },
)

export const memoryStoreKind = kind({
  name: 'memory_store',
  prefix: 'mstore',
  table: 'memory_stores',
  // Every write of a memory references it.
  shared: true,
  lockFirst: (db, id) => lockStores(db, [id]),
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: MemoryStore,
  // Subtracts expired memories that the sweep has not processed. Index memories_expiring.
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
