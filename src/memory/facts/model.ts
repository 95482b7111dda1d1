import { z } from 'zod'
import { removeVectors, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { columnFilter } from '#core/api/filters.ts'
import { type KindRow, kind } from '#core/api/kind.ts'
import { tagCondition, timeInput } from '#core/api/lists.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import type { AllowTarget } from '#core/api/operation.ts'
import { patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { memoryStoreKind } from '../stores/model.ts'
import { lockStoreOf } from './lock-store.ts'

export const MAX_CONTENT = 8192
export const SOURCE_TYPES = ['manual', 'conversation'] as const

export const memoryInputFields = {
  content: z.string().trim().min(1).max(MAX_CONTENT).describe('One fact in plain words; trimmed'),
  metadata: MetadataBag.nullable().describe('Custom metadata, stored unchanged'),
  expires_at: timeInput.nullable().describe('Time at which the memory becomes invalid; null for no expiry'),
}

export const Memory = record(
  'Memory',
  {
    memory_store_id: z.string(),
    content: z.string(),
    source_type: z.enum(SOURCE_TYPES),
    source_id: z
      .string()
      .nullable()
      .describe('ID of the source conversation; retained when the conversation is deleted'),
    actor_id: z.string().nullable().describe('ID of the end user that the fact belongs to, or null'),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    embedded: z.boolean().describe('Whether searches by meaning can find the memory; searches by words always can'),
    expires_at: z.iso.datetime().nullable(),
    invalidated_at: z.iso
      .datetime()
      .nullable()
      .describe('Time at which the memory was invalidated. Null while it is current.'),
    superseded_by_memory_id: z
      .string()
      .nullable()
      .describe('ID of the memory that replaced it. Null if that memory was deleted.'),
  },
  { tags: true },
)

export const AssignInput = z
  .strictObject({
    memory_ids: z.array(z.string().min(1).max(255)).min(1).max(500).describe('IDs of memories of the store'),
    actor_id: z.string().min(1).max(255).describe('ID of the end user to assign them to'),
  })
  .meta({ id: 'MemoryAssignInput' })

export const AssignAnswer = z
  .object({ assigned: z.int().describe('Number of memories that had no end user before') })
  .meta({ id: 'MemoryAssignAnswer' })

export const MemoryPatch = patchBody('MemoryPatch', {
  ...memoryInputFields,
  metadata: memoryInputFields.metadata.describe('Custom metadata that replaces the current metadata; null clears it'),
  tags: TagInput.nullable()
    .transform(tags => tags ?? {})
    .describe('Tags that replace the current tags; null clears them'),
})

export const memoryKind = kind({
  name: 'memory',
  plural: 'memories',
  prefix: 'mem',
  table: 'memories',
  // Deleted with their store, which is counted.
  counted: false,
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'memory_store', column: 'memory_store_id', on_delete: 'cascade' },
    { kind: 'memory', column: 'superseded_by_memory_id', on_delete: 'null' },
    { kind: 'actor', column: 'actor_id', on_delete: 'cascade' },
  ],
  record: Memory,
  computed: {
    invalidated_at: sql.fragment`coalesce(t.invalidated_at, case when t.expires_at <= now() then t.expires_at end)`,
    hash: sql.fragment`encode(t.content_hash, 'hex')`,
    store_tags: sql.fragment`(select s.tags from memory_stores s where s.id = t.memory_store_id)`,
  },
  hidden: { hash: z.string(), store_tags: z.record(z.string(), z.string()) },
  events: ['created', 'updated', 'deleted', 'superseded', 'retracted'],
  eventNotes: 'superseded adds superseded_by',
  lockFirst: lockStoreOf,
  async remove(tx, row) {
    tx.emit(memoryKind, 'deleted', row)
    await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: [row.id] })
    await memoryKind.delete(tx, row.id)
  },
})
export type MemoryRow = z.output<typeof memoryKind.row>

type StoreMember = KindRow & { memory_store_id: string; store_tags: Record<string, string> }

/** Returns the store of a row as policy target, because a memory is never more visible than its store. */
export const storePolicyTarget = ({ memory_store_id, project_id, store_tags }: StoreMember): AllowTarget => ({
  kind: memoryStoreKind,
  row: { id: memory_store_id, project_id, tags: store_tags },
})

/** Owner of a memory as in the indexes; '' without an end user. */
export const ownerColumn = (table: Fragment): Fragment => sql.fragment`coalesce(${table}.actor_id, '')`

export const ownerFilter = columnFilter(
  z.string().max(255).optional().describe('Exact match of `actor_id`; an empty string matches memories without one'),
  id => sql.fragment`${ownerColumn(sql.fragment`t`)} = ${id}`,
)

/** Condition that the memory `t` is current. */
export const currentCondition = sql.fragment`t.invalidated_at is null and (t.expires_at is null or t.expires_at > now())`

/** Condition that the memory `t` has all tags, null without tags. Index memories_tags, which leaves out memories without tags. */
export function hasTags(tags: Record<string, string> | undefined): Fragment | null {
  const contained = tagCondition(sql.fragment`t.tags`, tags)
  return contained && sql.fragment`${contained} and t.tags <> '{}'`
}

/** Raises VALIDATION_FAILED for a time that is not in the future. */
export function requireFuture(expiresAt: string | null | undefined, now: Date): void {
  if (expiresAt != null && new Date(expiresAt) <= now)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'expires_at', message: 'must be in the future' })
}

/** Raises VALIDATION_FAILED for an invalidated memory. */
export function requireCurrent({ id, invalidated_at }: MemoryRow, path = 'memory_id'): void {
  if (invalidated_at !== null)
    raiseInvalid({ code: 'INVALID_VALUE', path, message: `${id} was invalidated at ${invalidated_at}` })
}
