import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { projectField, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { sql } from '../../core/db/sql.ts'
import { Memory, memoryInputFields, SOURCE_TYPES } from '../memories/model.ts'

export const ENTRY_ACTIONS = ['created', 'superseded', 'skipped', 'updated'] as const
export const MECHANISMS = ['api', 'tool', 'rule', 'orchestration', 'formation'] as const
export type Mechanism = (typeof MECHANISMS)[number]

const outcome = {
  action: z.enum(ENTRY_ACTIONS).describe('What became of the claim'),
  memory_id: z
    .string()
    .nullable()
    .describe('Memory it resolved into: the new one, or the one that says it already; null once that is deleted'),
  superseded_memory_id: z.string().nullable().describe('Memory that it retired'),
  similarity: z
    .number()
    .nullable()
    .describe(
      'Cosine of the nearest memory, or of the declared target; 1 for the same text; null for nothing to compare',
    ),
  declared: z.boolean().describe('Whether the caller named the memory to replace'),
}

const fields = {
  memory_store_id: z.string(),
  content: z.string().describe('The text as claimed'),
  ...outcome,
  mechanism: z.enum(MECHANISMS).describe('The door it came through'),
  memory_rule_id: z.string().nullable().describe('Rule that stated it; null once that is deleted'),
  generation_id: z.string().nullable().describe('Turn that stated it'),
  conversation_id: z.string().nullable().describe('Conversation of that turn'),
  actor_id: z.string().nullable().describe('End user that the fact belongs to; null without one'),
  principal_type: z.string().describe('Who stated it: user, api_key, agent, orchestration_run or formation'),
  principal_id: z.string(),
  tags: z.record(z.string(), z.string()).describe('As claimed'),
  metadata: z.record(z.string(), z.unknown()).nullable().describe('As claimed'),
}

export const MemoryEntry = record('MemoryEntry', fields, { updated: false })

export const memoryEntryKind = kind({
  name: 'memory_entry',
  plural: 'memory_entries',
  prefix: 'mem_entry',
  table: 'memory_entries',
  counted: false,
  tags: false,
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'memory_store', column: 'memory_store_id', on_delete: 'cascade' },
    { kind: 'memory', column: 'memory_id', on_delete: 'null' },
    { kind: 'memory_rule', column: 'memory_rule_id', on_delete: 'null' },
    { kind: 'actor', column: 'actor_id', on_delete: 'cascade' },
  ],
  record: MemoryEntry,
  computed: { store_tags: sql.fragment`(select s.tags from memory_stores s where s.id = t.memory_store_id)` },
  hidden: { store_tags: z.record(z.string(), z.string()) },
  authorize: ({ memory_store_id, store_tags }) => ({ type: 'memory_store', id: memory_store_id, tags: store_tags }),
})
export type MemoryEntryRow = z.output<typeof memoryEntryKind.row>

const threshold = z.number().min(0).max(1).nullable().optional()

/** A fact as a caller states it. */
const claim = z.strictObject({
  project_id: projectField.describe('That of the store, where it is given'),
  memory_store_id: z.string().min(1).max(255).describe('Store that gets the fact'),
  content: memoryInputFields.content,
  tags: TagInput.optional().describe('Tags of a new memory'),
  metadata: memoryInputFields.metadata.optional(),
  expires_at: memoryInputFields.expires_at.optional(),
  source_type: z.enum(SOURCE_TYPES).default('manual').describe('Where the fact comes from'),
  source_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe('Conversation that it comes from; with source_type conversation, and only then'),
  actor_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe(
      'End user that the fact belongs to: it is compared with facts of the same end user, and not read by turns of others. Default: that of the turn that writes it, else none',
    ),
  supersedes: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe('Memory of the store that the fact replaces, however near it is; needs memories:UpdateMemory on it'),
  duplicate_threshold: threshold.describe('In place of the one of the store, for this write'),
  supersede_threshold: threshold.describe('In place of the one of the store, for this write'),
})

const requireSource = (
  { source_type, source_id }: Pick<z.output<typeof claim>, 'source_type' | 'source_id'>,
  context: z.core.$RefinementCtx,
): void => {
  if ((source_type === 'conversation') === (source_id != null)) return
  context.addIssue({
    code: 'custom',
    path: ['source_id'],
    params: { code: source_id == null ? 'REQUIRED' : 'INVALID_VALUE' },
    message:
      source_id == null ? 'is required with source_type conversation' : 'goes with source_type conversation only',
  })
}

export const MemoryInput = claim.superRefine(requireSource).meta({
  id: 'MemoryInput',
  example: {
    memory_store_id: 'mstore_01k5p3vd7r9hj2x8m4qcw6tz0e',
    content: 'Ada prefers to be called in the morning.',
  },
})

export const MemoryEntryInput = claim
  .extend({
    dry_run: z.boolean().optional().describe('Only say what would become of the fact; writes nothing'),
  })
  .superRefine(requireSource)
  .meta({
    id: 'MemoryEntryInput',
    example: {
      memory_store_id: 'mstore_01k5p3vd7r9hj2x8m4qcw6tz0e',
      content: 'Ada prefers to be called in the morning.',
    },
  })
export type MemoryEntryInput = z.output<typeof MemoryEntryInput>

/** What a write would do. */
export const DryRun = z.object({ dry_run: z.literal(true), ...outcome }).meta({ id: 'MemoryEntryDryRun' })

export const WrittenMemory = Memory.extend({
  action: outcome.action,
  entry_id: z.string().describe('Entry of the ledger'),
}).meta({ id: 'WrittenMemory' })
