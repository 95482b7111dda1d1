import type { z } from 'zod'
import { oneOf } from '#core/api/filters.ts'
import { kinds } from '#core/api/kind.ts'
import { type Context, type Operation, operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { findGoverningSchema, requireUsableSchema, schemaViolations } from './check.ts'
import {
  MetadataAudit,
  MetadataAuditInput,
  MetadataCheck,
  MetadataSchemaInput,
  MetadataSchemaPatch,
  type MetadataSchemaRow,
  MetadataVerdict,
  metadataSchemaKind,
  RESOURCE_TYPES,
} from './model.ts'
import { listGoverned } from './store.ts'

const tag = 'Metadata schemas'
const schemas = resource(metadataSchemaKind, { path: '/metadata-schemas', tag })

/** Rows read per statement, and rows checked per call. */
const READ_BATCH = 200
const CHECK_BATCH = 20
/** Checking all resources of a large project takes several seconds. */
const MAX_MS = 10_000

const READ_ACTIONS = { document: 'documents:GetDocument', file: 'files:GetFile' } as const

/**
 * Returns the first stored resources, in order of path, whose metadata violates a schema; missing metadata counts as an
 * empty object. Skips resources that the caller may not read. Stops at `limit` violations, after ten seconds, and when
 * the client disconnects.
 */
async function auditSchema(
  { db, allowed, request, services }: Pick<Context, 'db' | 'allowed' | 'request' | 'services'>,
  schema: MetadataSchemaRow,
  limit: number,
): Promise<z.output<typeof MetadataAudit>> {
  const kind = kinds.get(schema.resource_type)
  const signal = AbortSignal.any([AbortSignal.timeout(MAX_MS), request.closed])
  const data: { resource_id: string; path: string; error: string }[] = []
  let scanned = 0
  let after: string | null = null
  for (;;) {
    const rows = await listGoverned(db, schema, after, READ_BATCH)
    for (let at = 0; at < rows.length; at += CHECK_BATCH) {
      const readable = rows
        .slice(at, at + CHECK_BATCH)
        .filter(row => allowed(READ_ACTIONS[schema.resource_type], { kind, row }))
      let errors: (string | null)[]
      try {
        const values = readable.map(({ metadata }) => metadata)
        errors = await schemaViolations(services, schema, values, { signal })
      } catch (error) {
        if (!signal.aborted) throw error
        return { data, scanned }
      }
      for (const [index, { id, path }] of readable.entries()) {
        scanned++
        const error = errors[index]
        if (error !== null) data.push({ resource_id: id, path, error })
        if (data.length === limit) return { data, scanned }
      }
    }
    if (rows.length < READ_BATCH) return { data, scanned }
    after = rows[rows.length - 1].path
  }
}

const validateMetadata = operation({
  id: 'validateMetadata',
  method: 'post',
  path: '/metadata-schemas/validate',
  summary: 'Validate metadata',
  description: 'Validates metadata by the schema that applies at a path, without writing it.',
  tag,
  action: 'metadata-schemas:ListMetadataSchemas',
  creates: metadataSchemaKind,
  reads: true,
  body: MetadataCheck,
  answers: { 200: MetadataVerdict },
  async run({ body, db, project, request, services }) {
    const { metadata, path, resource_type } = body
    const schema = await findGoverningSchema(db, { project_id: project as string, resource_type, path })
    const [error] = schema ? await schemaViolations(services, schema, [metadata], { signal: request.closed }) : [null]
    return {
      valid: error === null,
      resource_type,
      metadata_schema_id: error === null ? null : (schema?.id ?? null),
      path_prefix: error === null ? null : (schema?.path_prefix ?? null),
      error,
    }
  },
})

export const metadataSchemaOperations: Operation[] = [
  // Index metadata_schemas_project for the order.
  schemas.list({
    summary: 'List metadata schemas, oldest first',
    filters: { resource_type: oneOf('resource_type', RESOURCE_TYPES) },
    order: () => sql.fragment`t.created_at, t.id`,
    across: {
      order: [
        ['created_at', 'asc'],
        ['id', 'asc'],
      ],
    },
  }),
  schemas.create({
    summary: 'Create a metadata schema',
    description: 'Applies to writes of metadata and paths from now on. Stored metadata is not validated.',
    body: MetadataSchemaInput,
    validate: ({ services, project, body }) =>
      requireUsableSchema(services, { project_id: project, schema: body.schema }),
    raises: ['NAME_CONFLICT'],
    prepare: ({ body, project, services }) =>
      requireUsableSchema(services, { project_id: project as string, schema: body.schema }),
  }),
  validateMetadata,
  schemas.get(),
  schemas.action('audit', {
    summary: 'Find resources that violate a metadata schema',
    description:
      'Returns violations in order of path; missing metadata counts as an empty object. Stops after ten seconds; ' +
      '`scanned` is the number of resources checked.',
    action: 'metadata-schemas:GetMetadataSchema',
    alsoActions: ['documents:GetDocument', 'files:GetFile'],
    reads: true,
    body: MetadataAuditInput,
    bodyOptional: true,
    answers: { 200: MetadataAudit },
    run: context => auditSchema(context, context.resource, context.body?.limit ?? 100),
  }),
  schemas.update({
    summary: 'Update a metadata schema',
    description: 'Applies to writes from now on. Stored metadata is not validated until it is written again.',
    body: MetadataSchemaPatch,
    quiet: true,
    raises: ['NAME_CONFLICT'],
    async prepare({ body, resource: { project_id }, services }) {
      if (body.schema !== undefined) await requireUsableSchema(services, { project_id, schema: body.schema })
    },
    // Includes the type for the message of a conflict (metadata_schemas_selector).
    write: ({ id, resource_type, path_prefix, schema }, { tx }) =>
      metadataSchemaKind.update(tx, id, { resource_type, path_prefix, schema }),
  }),
  schemas.remove(),
]
