import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { projectField, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { sql } from '#core/db/sql.ts'
import { Memory, memoryInputFields, SOURCE_TYPES } from '../facts/model.ts'

export const ENTRY_ACTIONS = ['created', 'superseded', 'skipped', 'updated'] as const
export const MECHANISMS = ['api', 'tool', 'rule', 'orchestration', 'formation'] as const
export type Mechanism = (typeof MECHANISMS)[number]

const outcome = {
  action: z.enum(ENTRY_ACTIONS).describe('Outcome of the fact'),
  memory_id: z
    .string()
    .nullable()
    .describe('ID of the new memory, or of the memory that already contains the fact. Null if it was deleted.'),
  superseded_memory_id: z.string().nullable().describe('ID of the memory that the fact replaced'),
  similarity: z
    .number()
    .nullable()
    .describe(
      'Cosine of the nearest memory, or of the memory in `supersedes`; 1 for the same text. Null if there was none to compare.',
    ),
  declared: z.boolean().describe('Whether the caller set `supersedes`'),
}

const fields = {
  memory_store_id: z.string(),
  content: z.string().describe('Submitted text'),
  ...outcome,
  mechanism: z.enum(MECHANISMS).describe('How the fact was submitted'),
  memory_rule_id: z.string().nullable().describe('ID of the memory rule that submitted it. Null if it was deleted.'),
  generation_id: z.string().nullable().describe('ID of the generation that submitted it'),
  conversation_id: z.string().nullable().describe('ID of the conversation of the generation'),
  actor_id: z.string().nullable().describe('ID of the end user that the fact belongs to, or null'),
  principal_type: z.string().describe('Type of the submitter: user, api_key, agent, orchestration_run or formation'),
  principal_id: z.string(),
  tags: z.record(z.string(), z.string()).describe('Submitted tags'),
  metadata: z.record(z.string(), z.unknown()).nullable().describe('Submitted metadata'),
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

/** A fact in requests. */
const factInput = z.strictObject({
  project_id: projectField.describe('ID of the project of the store'),
  memory_store_id: z.string().min(1).max(255).describe('ID of the memory store'),
  content: memoryInputFields.content,
  tags: TagInput.optional().describe('Tags of a new memory'),
  metadata: memoryInputFields.metadata.optional(),
  expires_at: memoryInputFields.expires_at.optional(),
  source_type: z.enum(SOURCE_TYPES).default('manual').describe('Source of the fact'),
  source_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe('ID of the source conversation; required with source_type `conversation` and allowed only with it'),
  actor_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe(
      'ID of the end user that the fact belongs to. The fact is compared only with facts of the same end user, and turns of other end users do not read it. Default the end user of the turn that writes it, else none.',
    ),
  supersedes: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .optional()
    .describe(
      'ID of a memory of the store that the fact replaces, regardless of similarity; requires memories:UpdateMemory on it',
    ),
  duplicate_threshold: threshold.describe('Threshold for this write. Default the threshold of the store.'),
  supersede_threshold: threshold.describe('Threshold for this write. Default the threshold of the store.'),
})

const requireSource = (
  { source_type, source_id }: Pick<z.output<typeof factInput>, 'source_type' | 'source_id'>,
  context: z.core.$RefinementCtx,
): void => {
  if ((source_type === 'conversation') === (source_id != null)) return
  context.addIssue({
    code: 'custom',
    path: ['source_id'],
    params: { code: source_id == null ? 'REQUIRED' : 'INVALID_VALUE' },
    message:
      source_id == null ? 'is required with source_type conversation' : 'is allowed only with source_type conversation',
  })
}

export const MemoryInput = factInput.superRefine(requireSource).meta({
  id: 'MemoryInput',
  example: {
    memory_store_id: 'mstore_01k5p3vd7r9hj2x8m4qcw6tz0e',
    content: 'Ada prefers to be called in the morning.',
  },
})

export const MemoryEntryInput = factInput
  .extend({
    dry_run: z.boolean().optional().describe('Whether to return the outcome without writing the fact'),
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

export const DryRun = z.object({ dry_run: z.literal(true), ...outcome }).meta({ id: 'MemoryEntryDryRun' })

export const WrittenMemory = Memory.extend({
  action: outcome.action,
  entry_id: z.string().describe('ID of the memory entry'),
}).meta({ id: 'WrittenMemory' })
