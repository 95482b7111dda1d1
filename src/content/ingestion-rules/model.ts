import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { SearchLanguage } from '#identity/projects/search-language.ts'
import { CHUNK_STRATEGIES, CHUNK_UNITS, chunkFields } from '../index/chunks/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { Directory } from '../paths.ts'

export const NATIVE_EXTRACTION = ['first', 'skip'] as const
export const FILE_DELIVERY = ['base64', 'download_url'] as const

/** An ingestion rule in responses. */
const IngestionRule = record('IngestionRule', {
  enabled: z.boolean(),
  content_type_glob: z.string().describe('Media types that the rule applies to'),
  path_prefix: z.string().nullable(),
  tool_id: z.string().nullable(),
  agent_id: z.string().nullable(),
  action: z.string().nullable(),
  preset_parameters: ContentMetadata.nullable(),
  native_extraction: z.enum(NATIVE_EXTRACTION).describe('Use of native text extraction'),
  file_delivery: z.enum(FILE_DELIVERY).describe('How the file is sent to the tool'),
  chunk_strategy: z.enum(CHUNK_STRATEGIES).nullable(),
  chunk_unit: z.enum(CHUNK_UNITS).nullable(),
  chunk_size: z.int().nullable(),
  chunk_overlap: z.int().nullable(),
  search_language: z.string().nullable().describe('Language of searches by words; null: the language of the project'),
  metadata: ContentMetadata.nullable(),
})

/** An enum that `checkIngestionRule` validates, because its problems have a separate error code. */
const uncheckedEnum = (values: readonly string[]) => z.string().meta({ enum: [...values] })
const uncheckedInteger = (minimum: number, maximum: number) => z.number().meta({ type: 'integer', minimum, maximum })

const fields = {
  enabled: z.boolean().describe('Whether the rule matches files'),
  content_type_glob: z
    .string()
    .min(1)
    .max(255)
    .toLowerCase()
    .describe('Media types as `type/subtype`; `*` matches any characters. Stored in lower case.'),
  // Every path is below the root, which is stored as no prefix.
  path_prefix: Directory.nullable()
    .transform(path => (path === '/' ? null : path))
    .describe(
      'Directory or path of the files that the rule applies to; the longest matching prefix takes precedence over globs',
    ),
  tool_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('ID of the tool that converts files; cannot be combined with agent_id'),
  agent_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('ID of the agent that converts files; cannot be combined with tool_id'),
  action: z.string().min(1).max(255).nullable().describe('Action of the tool; required for mcp and platform tools'),
  preset_parameters: ContentMetadata.nullable().describe(
    'Parameters merged into the top level of the tool input; `file` and `callback` are reserved',
  ),
  native_extraction: uncheckedEnum(NATIVE_EXTRACTION).describe(
    'Use of native extraction for types that support it: `first` - convert only files without extractable text; `skip` - convert every file',
  ),
  file_delivery: uncheckedEnum(FILE_DELIVERY).describe(
    'How the file is sent to the tool: `base64` - content in the input; `download_url` - temporary URL',
  ),
  chunk_strategy: uncheckedEnum(CHUNK_STRATEGIES)
    .nullable()
    .describe(chunkFields.chunk_strategy.description as string),
  chunk_unit: uncheckedEnum(CHUNK_UNITS)
    .nullable()
    .describe(chunkFields.chunk_unit.description as string),
  chunk_size: uncheckedInteger(1, 100_000)
    .nullable()
    .describe(chunkFields.chunk_size.description as string),
  chunk_overlap: uncheckedInteger(0, 99_999)
    .nullable()
    .describe(chunkFields.chunk_overlap.description as string),
  search_language: SearchLanguage.describe(
    'Language of the documents for searches by words: a text search configuration of PostgreSQL such as `german`, or `auto` to choose by script. Null for the language of the project.',
  ),
  metadata: ContentMetadata.nullable().describe('Metadata added to the documents'),
}

export const IngestionRulePatch = patchBody('IngestionRulePatch', fields, { enabled: false })
export type IngestionRulePatch = z.output<typeof IngestionRulePatch>

export const IngestionRuleInput = createBody('IngestionRuleInput', fields, ['content_type_glob'], {
  content_type_glob: 'application/pdf',
  tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e',
})

export const ResolveRuleInput = z
  .strictObject({
    project_id: projectField,
    content_type: z.string().min(1).max(255).describe('Media type of the file; parameters and case are ignored'),
    path: Directory.nullish().describe('Path of the file. Without it, only rules without path_prefix match.'),
  })
  .meta({ id: 'ResolveIngestionRuleInput', example: { content_type: 'application/pdf' } })

export const ResolvedRule = z
  .object({
    rule_id: z.string().nullable(),
    native: z.boolean().describe('Whether text of the type can be extracted without a converter'),
  })
  .meta({ id: 'ResolvedIngestionRule' })

export const ingestionRuleKind = kind({
  name: 'ingestion_rule',
  prefix: 'igr',
  table: 'ingestion_rules',
  references: [
    { kind: 'tool', column: 'tool_id', on_delete: 'block', grantable: true },
    { kind: 'agent', column: 'agent_id', on_delete: 'block', grantable: true },
  ],
  record: IngestionRule,
  hidden: { author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: {
    ingestion_rules_glob: ({ content_type_glob, path_prefix = null }) =>
      raise('INGESTION_RULE_GLOB_CONFLICT', { meta: { content_type_glob, path_prefix } }),
  },
})
export type IngestionRuleRow = z.output<typeof ingestionRuleKind.row>
