import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { MAX_FACTS } from './facts.ts'

export const RULE_EVENTS = ['generations.completed', 'conversation_messages.generated'] as const

const PRESET_BYTES = 64 * 1024

const id = z.string().min(1).max(255)

const fields = {
  on: z.enum(RULE_EVENTS).describe('What is looked at: turns that complete, or replies in conversations'),
  source_agent_ids: z
    .array(id)
    .min(1)
    .max(500)
    .nullable()
    .describe('Agents whose turns are looked at; null for all of the project'),
  agent_id: id
    .nullable()
    .describe('Agent that says which facts are kept; without it and tool_id a model extracts them'),
  tool_id: id.nullable().describe('Tool that says which facts are kept'),
  action: id.nullable().describe('Operation of a platform tool, tool of the server of an mcp tool; for others null'),
  preset_parameters: z
    .record(z.string(), z.unknown())
    .refine(value => Buffer.byteLength(JSON.stringify(value)) <= PRESET_BYTES, 'must be at most 64 KiB')
    .nullable()
    .describe('Arguments of the tool beside those that say what happened'),
  prompt: z
    .string()
    .max(65_536)
    .nullable()
    .describe('The task of the model that extracts facts, in place of the built-in one'),
  ai_provider_id: id
    .nullable()
    .describe('AI provider of that model; null goes by the provider or route of the agent whose turn it was'),
  model: id.nullable().describe('Model of the provider; null is that of the agent, or the default of the provider'),
  enabled: z.boolean().describe('Whether turns are looked at; default true'),
}

export const MemoryRule = record('MemoryRule', {
  memory_store_id: z.string().describe('Store that the facts go to'),
  ...fields,
  disabled_reason: z
    .string()
    .nullable()
    .describe('`handler_deleted` when the agent or tool that said which facts are kept was deleted'),
})

export const MemoryRuleInput = createBody(
  'MemoryRuleInput',
  { memory_store_id: id.describe('Store that the facts go to; it cannot be changed'), ...fields },
  ['memory_store_id', 'on'],
)

export const MemoryRulePatch = patchBody('MemoryRulePatch', fields)

export const RuleTestInput = z
  .strictObject({ generation_id: id.describe('A completed turn of the project whose content was kept') })
  .meta({ id: 'MemoryRuleTestInput' })

export const RuleTest = z
  .object({
    facts: z
      .array(
        z.object({
          content: z.string(),
          tags: z.record(z.string(), z.string()),
          action: z.string().nullable().describe('What writing it would do; null when it could not be written'),
          similarity: z.number().nullable().describe('Cosine of the fact and the nearest memory'),
          memory_id: z.string().nullable().describe('The memory that it is skipped for'),
          superseded_memory_id: z.string().nullable().describe('The memory that it would take the place of'),
        }),
      )
      .describe(`What the handler said, at most ${MAX_FACTS}`),
  })
  .meta({ id: 'MemoryRuleTest' })

/** Rules whose handler goes are switched off: without one, a model would extract facts in its place. */
const byHandler = (kind: 'agent' | 'tool', column: 'agent_id' | 'tool_id') => ({
  kind,
  column,
  on_delete: 'follow' as const,
  counted: null,
  letGo: disableRules,
})

/** Rules are named as their store is: who may change it decides what it takes. */
export const memoryRuleKind = kind({
  name: 'memory_rule',
  prefix: 'mrule',
  table: 'memory_rules',
  references: [
    { kind: 'memory_store', column: 'memory_store_id', on_delete: 'cascade' },
    byHandler('agent', 'agent_id'),
    byHandler('tool', 'tool_id'),
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' },
  ],
  record: MemoryRule,
  hidden: {
    /** Whom a handler runs as. */
    authority: z.custom<PrincipalRecord>(),
    /** Firings that failed one after the other. */
    failures: z.int(),
    store_tags: z.record(z.string(), z.string()),
  },
  computed: { store_tags: sql.fragment`(select s.tags from memory_stores s where s.id = t.memory_store_id)` },
  authored: 'authority',
  authorize: ({ memory_store_id, store_tags }) => ({ type: 'memory_store', id: memory_store_id, tags: store_tags }),
  events: ['created', 'updated', 'deleted'],
})
export type MemoryRuleRow = z.output<typeof memoryRuleKind.row>

/** Carries the id of a project whose rules were changed. */
export const rulesChannel = 'muster_memory_rules'

/** Switches off rules whose handler is deleted; the caller holds their rows. */
export async function disableRules(tx: Tx, ids: readonly string[]): Promise<void> {
  const rows = await tx.any(memoryRuleKind.sql`
    update memory_rules t set enabled = false, disabled_reason = 'handler_deleted', agent_id = null, tool_id = null,
      updated_at = now()
    where t.id = any(${sql.array([...ids], 'text')}) returning ${memoryRuleKind.columns}`)
  for (const row of rows) {
    tx.emit(memoryRuleKind, 'updated', row)
    invalidateOnCommit(tx, rulesChannel, row.project_id)
  }
}
