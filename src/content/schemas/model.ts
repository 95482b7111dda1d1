import { z } from 'zod'
import { checkSchema, SchemaError } from '../../core/api/json-schema.ts'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { MetadataBag } from '../metadata.ts'
import { Directory, WritableDirectory } from '../paths.ts'

export const RESOURCE_TYPES = ['document', 'file'] as const
export type ResourceType = (typeof RESOURCE_TYPES)[number]

/** What of JSON Schema holds for metadata (content, 11.2). */
export const schemaRules = { strict: true }

/** What the metadata of resources at or below a path must satisfy, as the wire shows it (content, 11.1). */
export const MetadataSchema = record('MetadataSchema', {
  resource_type: z.enum(RESOURCE_TYPES),
  path_prefix: z.string(),
  schema: z.record(z.string(), z.unknown()),
})

/** A row; `schema` is its JSON. */
export const MetadataSchemaRow = z.object({
  ...MetadataSchema.shape,
  schema: z.string(),
  created_at: z.string(),
  updated_at: z.string(),
})
export type MetadataSchemaRow = z.output<typeof MetadataSchemaRow>

/** A usable JSON Schema; parses to its JSON, so that it is stored as it was written. */
const SchemaInput = z
  .unknown()
  .transform((schema, context) => {
    if (schema === undefined) {
      context.addIssue({ code: 'custom', params: { code: 'REQUIRED' }, message: 'is required' })
      return z.NEVER
    }
    const text = JSON.stringify(schema)
    try {
      checkSchema(text, schemaRules)
      return text
    } catch (error) {
      if (!(error instanceof SchemaError)) throw error
      context.addIssue({ code: 'custom', message: error.message })
      return z.NEVER
    }
  })
  .meta({
    type: 'object',
    additionalProperties: true,
    description:
      'JSON Schema 2020-12, or draft-07 where $schema says so, of at most 64 KiB. References stay inside it; formats ' +
      'date, date-time, email, uri and uuid are asserted; patterns have neither lookaround nor backreferences',
  })

export const MetadataSchemaInput = z
  .strictObject({
    project_id: z.string().optional(),
    resource_type: z.enum(RESOURCE_TYPES),
    path_prefix: WritableDirectory,
    schema: SchemaInput,
  })
  .meta({ id: 'MetadataSchemaInput' })

export const MetadataSchemaPatch = z
  .strictObject({ path_prefix: WritableDirectory.optional(), schema: SchemaInput.optional() })
  .meta({ id: 'MetadataSchemaPatch' })

/** A bag to judge as a write at a path would. */
export const MetadataCheck = z
  .strictObject({
    project_id: z.string().optional(),
    path: Directory,
    resource_type: z.enum(RESOURCE_TYPES).default('document'),
    metadata: MetadataBag.nullish().describe('null is judged as an empty bag'),
  })
  .meta({ id: 'MetadataCheck' })

export const MetadataVerdict = z
  .object({
    valid: z.boolean(),
    resource_type: z.enum(RESOURCE_TYPES),
    metadata_schema_id: z.string().nullable(),
    path_prefix: z.string().nullable(),
    error: z.string().nullable(),
  })
  .meta({ id: 'MetadataVerdict' })

export const MetadataAuditInput = z
  .strictObject({ limit: z.int().min(1).max(100).default(100) })
  .meta({ id: 'MetadataAuditInput' })

export const MetadataAudit = z
  .object({
    data: z.array(z.object({ resource_id: z.string(), path: z.string(), error: z.string() })),
    scanned: z.int().describe('Resources that were judged'),
  })
  .meta({ id: 'MetadataAudit' })

export const metadataSchemaKind = kind({
  name: 'metadata_schema',
  prefix: 'mdschema',
  table: 'metadata_schemas',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  row: MetadataSchemaRow,
  present: row => ({ ...row, schema: JSON.parse(row.schema) }),
  events: ['created', 'updated', 'deleted'],
})
