import { z } from 'zod'
import { kind, type Values } from '#core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { isObject, parseExactJson } from '#core/base/exact-json.ts'
import { MAX_SCHEMA_BYTES } from '#core/json-schema/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { Directory, WritableDirectory } from '../paths.ts'

export const RESOURCE_TYPES = ['document', 'file'] as const
export type SchemaResourceType = (typeof RESOURCE_TYPES)[number]

/** A metadata schema in responses. */
const MetadataSchema = record('MetadataSchema', {
  resource_type: z.enum(RESOURCE_TYPES),
  path_prefix: z.string(),
  schema: z.record(z.string(), z.unknown()).describe('JSON Schema'),
})

/** A JSON Schema, which the operation validates; parses to its JSON text, which is stored unchanged. */
const SchemaInput = z
  .unknown()
  .transform((schema, context) => {
    const refuse = (message: string, code?: string): never => {
      context.addIssue({ code: 'custom', ...(code ? { params: { code } } : {}), message })
      return z.NEVER
    }
    if (schema === undefined) return refuse('is required', 'REQUIRED')
    if (!isObject(schema)) return refuse('must be a JSON Schema object')
    const text = JSON.stringify(schema)
    return Buffer.byteLength(text) > MAX_SCHEMA_BYTES ? refuse('must be at most 64 KiB') : text
  })
  .meta({
    type: 'object',
    additionalProperties: true,
    description:
      'JSON Schema 2020-12, or draft-07 if declared by $schema, of at most 64 KiB. External references, lookaround and ' +
      'backreferences are not supported; the formats date, date-time, email, uri and uuid are asserted.',
  })

const fields = {
  resource_type: z.enum(RESOURCE_TYPES).describe('Type of the resources that the schema applies to'),
  path_prefix: WritableDirectory.describe(
    'Directory or path that the schema applies to; for each resource only the schema with the longest prefix applies',
  ),
  schema: SchemaInput,
}

export const MetadataSchemaInput = createBody(
  'MetadataSchemaInput',
  fields,
  ['resource_type', 'path_prefix', 'schema'],
  {
    resource_type: 'document',
    path_prefix: '/help',
    schema: { type: 'object', properties: { audience: { type: 'string' } }, required: ['audience'] },
  },
)

export const MetadataSchemaPatch = patchBody(
  'MetadataSchemaPatch',
  {
    path_prefix: fields.path_prefix,
    schema: fields.schema,
  },
  { path_prefix: '/help' },
)

/** Metadata to validate as if it were written at a path. */
export const MetadataCheck = z
  .strictObject({
    project_id: projectField,
    path: Directory.describe('Path of the resource'),
    resource_type: z.enum(RESOURCE_TYPES).default('document').describe('Type of the resource'),
    metadata: ContentMetadata.nullish().describe('Metadata to validate; null counts as an empty object'),
  })
  .meta({ id: 'MetadataCheck', example: { path: '/help/returns.md', metadata: { audience: 'customers' } } })

export const MetadataVerdict = z
  .object({
    valid: z.boolean().describe('Whether the metadata is valid'),
    resource_type: z.enum(RESOURCE_TYPES),
    metadata_schema_id: z.string().nullable(),
    path_prefix: z.string().nullable(),
    error: z.string().nullable(),
  })
  .meta({ id: 'MetadataVerdict' })

export const MetadataAuditInput = z
  .strictObject({ limit: z.int().min(1).max(100).default(100).describe('Maximum number of violations to return') })
  .meta({ id: 'MetadataAuditInput' })

export const MetadataAudit = z
  .object({
    data: z.array(z.object({ resource_id: z.string(), path: z.string(), error: z.string() })),
    scanned: z.int().describe('Number of resources checked'),
  })
  .meta({ id: 'MetadataAudit' })

/** A row stores the schema as JSON text. */
const Row = MetadataSchema.extend({ schema: z.string() })
export type MetadataSchemaRow = z.output<typeof Row>

export const metadataSchemaKind = kind({
  name: 'metadata_schema',
  prefix: 'mdschema',
  table: 'metadata_schemas',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: MetadataSchema,
  row: Row,
  present: (row: MetadataSchemaRow) => ({ ...row, schema: parseExactJson(row.schema) }),
  events: ['created', 'updated', 'deleted'],
  unique: {
    metadata_schemas_selector: ({ resource_type, path_prefix }: Values<MetadataSchemaRow>) =>
      raise('NAME_CONFLICT', {
        message: `A metadata schema for ${resource_type} resources with path prefix '${path_prefix}' already exists`,
        meta: { resource_type, path_prefix },
      }),
  },
})
