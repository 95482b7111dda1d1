import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { sql } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { MAX_FACTS } from './facts.ts'

const RULE_EVENTS = ['generations.completed', 'conversation_messages.generated'] as const

const PRESET_BYTES = 64 * 1024

const id = z.string().min(1).max(255)

const fields = {
  on: z.enum(RULE_EVENTS).describe('Trigger of the rule: completed turns, or replies in conversations'),
  source_agent_ids: z
    .array(id)
    .min(1)
    .max(500)
    .nullable()
    .describe('Agents whose turns trigger the rule; null for all agents of the project'),
  agent_id: id
    .nullable()
    .describe('Agent that extracts the facts. Without agent_id and tool_id, a model extracts them.'),
  tool_id: id.nullable().describe('Tool that extracts the facts'),
  action: id.nullable().describe('Operation of a platform tool, or tool of an mcp server; null for other tools'),
  preset_parameters: z
    .record(z.string(), z.unknown())
    .refine(value => Buffer.byteLength(JSON.stringify(value)) <= PRESET_BYTES, 'must be at most 64 KiB')
    .nullable()
    .describe("Arguments of the tool, in addition to the platform's. At most 64 KiB."),
  prompt: z
    .string()
    .max(65_536)
    .nullable()
    .describe('Instruction of the model that extracts facts; null for the built-in one'),
  ai_provider_id: id
    .nullable()
    .describe('AI provider of the extraction model; null for the provider or route of the agent of the turn'),
  model: id.nullable().describe("Model of the provider; null for the agent's model, or the provider's default"),
  enabled: z.boolean().describe('Whether the rule is active. Default true.'),
  include_evaluations: z
    .boolean()
    .describe('Whether turns of evaluations, whose inputs are test data, trigger the rule. Default false.'),
}

export const MemoryRule = record('MemoryRule', {
  memory_store_id: z.string().describe('Memory store for the facts'),
  ...fields,
  disabled_reason: z
    .string()
    .nullable()
    .describe('Reason for deactivation: `handler_deleted` when the agent or tool of the rule was deleted'),
})

export const MemoryRuleInput = createBody(
  'MemoryRuleInput',
  { memory_store_id: id.describe('Memory store for the facts; immutable'), ...fields },
  ['memory_store_id', 'on'],
)

export const MemoryRulePatch = patchBody('MemoryRulePatch', fields)

export const RuleTestInput = z
  .strictObject({ generation_id: id.describe('Completed turn of the project whose content is stored') })
  .meta({ id: 'MemoryRuleTestInput' })

export const RuleTest = z
  .object({
    facts: z
      .array(
        z.object({
          content: z.string(),
          tags: z.record(z.string(), z.string()),
          action: z.string().nullable().describe('Outcome of writing the fact; null if it cannot be written'),
          similarity: z.number().nullable().describe('Cosine similarity to the nearest memory'),
          memory_id: z.string().nullable().describe('Existing memory because of which the fact would be skipped'),
          superseded_memory_id: z.string().nullable().describe('Memory that the fact would supersede'),
        }),
      )
      .describe(`Facts returned by the handler. At most ${MAX_FACTS}.`),
  })
  .meta({ id: 'MemoryRuleTest' })

/** Reference that disables rules whose handler is deleted: otherwise a model would extract facts instead. */
const handlerReference = (kind: 'agent' | 'tool', column: 'agent_id' | 'tool_id') => ({
  kind,
  column,
  on_delete: 'follow' as const,
  counted: null,
  detach: disableRules,
})

/** Memory rules are authorized as their store: permission to change the store covers its rules. */
export const memoryRuleKind = kind({
  name: 'memory_rule',
  prefix: 'mrule',
  table: 'memory_rules',
  references: [
    { kind: 'memory_store', column: 'memory_store_id', on_delete: 'cascade' },
    handlerReference('agent', 'agent_id'),
    handlerReference('tool', 'tool_id'),
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' },
  ],
  record: MemoryRule,
  hidden: {
    /** Principal of the handler. */
    authority: z.custom<PrincipalRecord>(),
    /** Consecutive failed firings. */
    failures: z.int(),
    store_tags: z.record(z.string(), z.string()),
  },
  computed: { store_tags: sql.fragment`(select s.tags from memory_stores s where s.id = t.memory_store_id)` },
  authored: 'authority',
  authorize: ({ memory_store_id, store_tags }) => ({ type: 'memory_store', id: memory_store_id, tags: store_tags }),
  events: ['created', 'updated', 'deleted'],
})
export type MemoryRuleRow = z.output<typeof memoryRuleKind.row>

/** Notification channel for changed rules; the payload is the project id. */
export const rulesChannel = 'muster_memory_rules'

/** Disables rules whose handler is deleted. The caller has locked the rows. */
async function disableRules(tx: Tx, ids: readonly string[]): Promise<void> {
  const rows = await tx.any(memoryRuleKind.sql`
    update memory_rules t set enabled = false, disabled_reason = 'handler_deleted', agent_id = null, tool_id = null,
      updated_at = now()
    where t.id = any(${sql.array([...ids], 'text')}) returning ${memoryRuleKind.columns}`)
  for (const row of rows) {
    tx.emit(memoryRuleKind, 'updated', row)
    invalidateOnCommit(tx, rulesChannel, row.project_id)
  }
}

/** `source` of the turns of handler agents. */
export const MEMORY_RULE_SOURCE = 'memory_rule'
