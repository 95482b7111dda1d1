import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '../../core/api/record.ts'
import { CHUNK_STRATEGIES, CHUNK_UNITS, chunkFields } from '../chunks/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { Directory } from '../paths.ts'

export const NATIVE_EXTRACTION = ['first', 'skip'] as const
export const FILE_DELIVERY = ['base64', 'download_url'] as const

/** A rule as the wire shows it: which files it is for, who converts them, and how their text is cut. */
export const IngestionRule = record('IngestionRule', {
  enabled: z.boolean(),
  content_type_glob: z.string().describe('Media types that it applies to'),
  path_prefix: z.string().nullable(),
  tool_id: z.string().nullable(),
  agent_id: z.string().nullable(),
  action: z.string().nullable(),
  preset_parameters: ContentMetadata.nullable(),
  native_extraction: z.enum(NATIVE_EXTRACTION).describe('Whether the built-in extraction goes first'),
  file_delivery: z.enum(FILE_DELIVERY).describe('How the tool gets the file'),
  chunk_strategy: z.enum(CHUNK_STRATEGIES).nullable(),
  chunk_unit: z.enum(CHUNK_UNITS).nullable(),
  chunk_size: z.int().nullable(),
  chunk_overlap: z.int().nullable(),
  metadata: ContentMetadata.nullable(),
})

/** A value of a closed list, validated with the rest of the rule, whose failures have a code of their own. */
const oneOf = (values: readonly string[]) => z.string().meta({ enum: [...values] })
const whole = (minimum: number, maximum: number) => z.number().meta({ type: 'integer', minimum, maximum })

const fields = {
  enabled: z.boolean().describe('False: no file matches it'),
  content_type_glob: z
    .string()
    .min(1)
    .max(255)
    .toLowerCase()
    .describe('`type/subtype`; `*` stands for any run of characters. Stored in lower case'),
  // Every path is below the root, so it is no prefix.
  path_prefix: Directory.nullable()
    .transform(path => (path === '/' ? null : path))
    .describe('Only files at or below it. The longest one wins, whatever the globs'),
  tool_id: z.string().min(1).max(255).nullable().describe('Exactly one of tool_id and agent_id is set'),
  agent_id: z.string().min(1).max(255).nullable().describe('Agent that is given the file and answers its text'),
  action: z.string().min(1).max(255).nullable().describe('Operation of the tool; mcp and platform tools need one'),
  preset_parameters: ContentMetadata.nullable().describe(
    'Merged into the input of the tool at its top level; not `file` and `callback`',
  ),
  native_extraction: oneOf(NATIVE_EXTRACTION).describe(
    'For types that need no converter. `first`: convert what has no text of its own; `skip`: convert every file',
  ),
  file_delivery: oneOf(FILE_DELIVERY).describe('How a tool gets the bytes'),
  chunk_strategy: oneOf(CHUNK_STRATEGIES)
    .nullable()
    .describe(chunkFields.chunk_strategy.description as string),
  chunk_unit: oneOf(CHUNK_UNITS)
    .nullable()
    .describe(chunkFields.chunk_unit.description as string),
  chunk_size: whole(1, 100_000)
    .nullable()
    .describe(chunkFields.chunk_size.description as string),
  chunk_overlap: whole(0, 99_999)
    .nullable()
    .describe(chunkFields.chunk_overlap.description as string),
  metadata: ContentMetadata.nullable().describe('Added to the metadata of the documents'),
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
    content_type: z.string().min(1).max(255).describe('Parameters and case do not matter'),
    path: Directory.nullish().describe('Where the file is; absent: a file that no path_prefix matches'),
  })
  .meta({ id: 'ResolveIngestionRuleInput', example: { content_type: 'application/pdf' } })

export const ResolvedRule = z
  .object({
    rule_id: z.string().nullable(),
    native: z.boolean().describe('Whether the type needs no converter'),
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
