import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { CHUNK_STRATEGIES, CHUNK_UNITS } from '../chunks/model.ts'
import { MetadataBag } from '../metadata.ts'
import { Directory } from '../paths.ts'

export const NATIVE_EXTRACTION = ['first', 'skip'] as const
export const FILE_DELIVERY = ['base64', 'download_url'] as const

/** What a caller writes of a rule: which files it is for, who converts them, and how their text is cut (content, 7.1). */
export const RuleConfig = z.object({
  enabled: z.boolean(),
  content_type_glob: z.string(),
  path_prefix: z.string().nullable(),
  tool_id: z.string().nullable(),
  agent_id: z.string().nullable(),
  action: z.string().nullable(),
  preset_parameters: MetadataBag.nullable(),
  native_extraction: z.enum(NATIVE_EXTRACTION),
  file_delivery: z.enum(FILE_DELIVERY),
  chunk_strategy: z.enum(CHUNK_STRATEGIES).nullable(),
  chunk_unit: z.enum(CHUNK_UNITS).nullable(),
  chunk_size: z.int().nullable(),
  chunk_overlap: z.int().nullable(),
  metadata: MetadataBag.nullable(),
})
export type RuleConfig = z.output<typeof RuleConfig>

/** A rule as the wire shows it. */
export const IngestionRule = record('IngestionRule', RuleConfig.shape)
export type IngestionRuleRow = z.output<typeof IngestionRule>

/** A value of a closed list. It is judged with the rest of the rule, whose failures have a code of their own. */
const oneOf = (values: readonly string[]) => z.string().meta({ enum: [...values] })
const whole = (minimum: number, maximum: number) => z.number().meta({ type: 'integer', minimum, maximum })

const fields = {
  enabled: z.boolean().describe('False: no file matches it'),
  content_type_glob: z
    .string()
    .min(1)
    .max(255)
    .describe('`type/subtype`; `*` stands for any run of characters. Stored in lower case'),
  path_prefix: Directory.nullable().describe(
    'Only files at or below it. The longest one wins before the glob is looked at',
  ),
  tool_id: z.string().min(1).max(255).nullable().describe('Exactly one of tool_id and agent_id is set'),
  agent_id: z.string().min(1).max(255).nullable(),
  action: z.string().min(1).max(255).nullable().describe('Operation of the tool; mcp and platform tools need one'),
  preset_parameters: MetadataBag.nullable().describe(
    'Merged into the input of the tool at its top level; not `file` and `callback`',
  ),
  native_extraction: oneOf(NATIVE_EXTRACTION).describe(
    'For types that need no converter. `first`: convert what has no text of its own; `skip`: convert every file',
  ),
  file_delivery: oneOf(FILE_DELIVERY).describe('How a tool gets the bytes'),
  chunk_strategy: oneOf(CHUNK_STRATEGIES).nullable(),
  chunk_unit: oneOf(CHUNK_UNITS).nullable(),
  chunk_size: whole(1, 100_000).nullable(),
  chunk_overlap: whole(0, 99_999).nullable(),
  metadata: MetadataBag.nullable(),
}

export const IngestionRulePatch = z.strictObject(fields).partial().meta({ id: 'IngestionRulePatch' })
export type IngestionRulePatch = z.output<typeof IngestionRulePatch>

export const IngestionRuleInput = IngestionRulePatch.extend({
  project_id: z.string().nullish(),
  content_type_glob: fields.content_type_glob,
}).meta({ id: 'IngestionRuleInput' })

export const ResolveInput = z
  .strictObject({
    project_id: z.string().nullish(),
    content_type: z.string().min(1).max(255).describe('Parameters and case do not matter'),
    path: Directory.nullish().describe('Where the file is; absent: a file that no path_prefix matches'),
  })
  .meta({ id: 'ResolveIngestionRuleInput' })

export const Resolved = z
  .object({
    rule_id: z.string().nullable(),
    native: z.boolean().describe('Whether the type needs no converter'),
  })
  .meta({ id: 'ResolvedIngestionRule' })

/** The part of a rule that its callers write. */
export const configOf = (row: IngestionRuleRow): RuleConfig => ({
  enabled: row.enabled,
  content_type_glob: row.content_type_glob,
  path_prefix: row.path_prefix,
  tool_id: row.tool_id,
  agent_id: row.agent_id,
  action: row.action,
  preset_parameters: row.preset_parameters,
  native_extraction: row.native_extraction,
  file_delivery: row.file_delivery,
  chunk_strategy: row.chunk_strategy,
  chunk_unit: row.chunk_unit,
  chunk_size: row.chunk_size,
  chunk_overlap: row.chunk_overlap,
  metadata: row.metadata,
})

export const ingestionRuleKind = kind({
  name: 'ingestion_rule',
  prefix: 'igr',
  table: 'ingestion_rules',
  references: [{ kind: 'agent', column: 'agent_id', on_delete: 'block' }],
  record: IngestionRule,
  events: ['created', 'updated', 'deleted'],
})
