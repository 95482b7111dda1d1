import { z } from 'zod'
import { removeVectors, VECTOR_SOURCES } from '../../content/vectors/store.ts'
import { raiseInvalid } from '../../core/api/errors.ts'
import { columnFilter } from '../../core/api/filters.ts'
import { type KindRow, kind } from '../../core/api/kind.ts'
import { timeInput } from '../../core/api/lists.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import type { AllowTarget } from '../../core/api/operation.ts'
import { patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import { memoryStoreKind } from '../stores/model.ts'
import { lockStoreOf } from './lock-store.ts'

export const MAX_CONTENT = 8192
export const SOURCE_TYPES = ['manual', 'conversation'] as const

/** What a memory says, as a caller writes it. */
export const memoryInputFields = {
  content: z.string().trim().min(1).max(MAX_CONTENT).describe('One fact in plain words; spaces around it are left out'),
  metadata: MetadataBag.nullable().describe('Data of your own; its keys are never touched'),
  expires_at: timeInput.nullable().describe('From then on the memory counts as invalidated; null for never'),
}

export const Memory = record(
  'Memory',
  {
    memory_store_id: z.string(),
    content: z.string(),
    source_type: z.enum(SOURCE_TYPES),
    source_id: z.string().nullable().describe('Conversation that the fact comes from; kept when that is deleted'),
    actor_id: z.string().nullable().describe('End user that the fact belongs to; null without one'),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    embedded: z.boolean().describe('Whether searches by meaning and likeness find it; words find it in any case'),
    expires_at: z.iso.datetime().nullable(),
    invalidated_at: z.iso.datetime().nullable().describe('Since when it no longer holds; null holds now'),
    superseded_by_memory_id: z.string().nullable().describe('What replaced it; null again once that is deleted'),
  },
  { tags: true },
)

export const AssignInput = z
  .strictObject({
    memory_ids: z.array(z.string().min(1).max(255)).min(1).max(500).describe('Memories of the store'),
    actor_id: z.string().min(1).max(255).describe('End user that they belong to from then on'),
  })
  .meta({ id: 'MemoryAssignInput' })

export const AssignAnswer = z
  .object({ assigned: z.int().describe('Memories that had no end user before') })
  .meta({ id: 'MemoryAssignAnswer' })

export const MemoryPatch = patchBody('MemoryPatch', {
  ...memoryInputFields,
  metadata: memoryInputFields.metadata.describe('Replaces the metadata; null clears it'),
  tags: TagInput.nullable()
    .transform(tags => tags ?? {})
    .describe('Replaces the tags; null clears them'),
})

export const memoryKind = kind({
  name: 'memory',
  plural: 'memories',
  prefix: 'mem',
  table: 'memories',
  // They go with their store, which is counted.
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
  eventNotes: 'superseded carries superseded_by',
  lockFirst: lockStoreOf,
  async remove(tx, row) {
    tx.emit(memoryKind, 'deleted', row)
    await removeVectors(tx, { source: VECTOR_SOURCES.memory, ref_ids: [row.id] })
    await memoryKind.delete(tx, row.id)
  },
})
export type MemoryRow = z.output<typeof memoryKind.row>

type Contained = KindRow & { memory_store_id: string; store_tags: Record<string, string> }

/** The store that a row is in, for a second decision: a memory is never more visible than its store. */
export const storePolicyTarget = ({ memory_store_id, project_id, store_tags }: Contained): AllowTarget => ({
  kind: memoryStoreKind,
  row: { id: memory_store_id, project_id, tags: store_tags },
})

/** Whose a memory is, as the indexes by it have it; '' for nobody's. */
export const ownerColumn = (table: Fragment): Fragment => sql.fragment`coalesce(${table}.actor_id, '')`

export const ownerFilter = columnFilter(
  z.string().max(255).optional().describe('Exact match of `actor_id`; empty: without one'),
  id => sql.fragment`${ownerColumn(sql.fragment`t`)} = ${id}`,
)

/** The condition that the memory `t` holds now. */
export const currentCondition = sql.fragment`t.invalidated_at is null and (t.expires_at is null or t.expires_at > now())`

/** Raises VALIDATION_FAILED for a time that is over. */
export function requireFuture(expiresAt: string | null | undefined, now: Date): void {
  if (expiresAt != null && new Date(expiresAt) <= now)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'expires_at', message: 'must be in the future' })
}

/** Raises VALIDATION_FAILED for a memory that no longer holds. */
export function requireCurrent({ id, invalidated_at }: MemoryRow, path = 'memory_id'): void {
  if (invalidated_at !== null)
    raiseInvalid({ code: 'INVALID_VALUE', path, message: `${id} no longer holds since ${invalidated_at}` })
}
