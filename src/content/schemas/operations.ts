import { oneOf } from '../../core/api/filters.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { auditSchema } from './audit.ts'
import { governingDeclaration, requireUsableSchema, schemaViolations } from './check.ts'
import {
  MetadataAudit,
  MetadataAuditInput,
  MetadataCheck,
  MetadataSchemaInput,
  MetadataSchemaPatch,
  MetadataVerdict,
  metadataSchemaKind,
  RESOURCE_TYPES,
} from './model.ts'

const tag = 'Metadata schemas'
const schemas = resource(metadataSchemaKind, { path: '/metadata-schemas', tag })

const validateMetadata = operation({
  id: 'validateMetadata',
  method: 'post',
  path: '/metadata-schemas/validate',
  summary: 'Check metadata as a write at a path would',
  description: 'Nothing is written: the answer lists what the schema of that path refuses.',
  tag,
  action: 'metadata-schemas:ListMetadataSchemas',
  creates: metadataSchemaKind,
  reads: true,
  body: MetadataCheck,
  answers: { 200: MetadataVerdict },
  async run({ body, db, project, request, services }) {
    const { metadata, path, resource_type } = body
    const schema = await governingDeclaration(db, { project_id: project as string, resource_type, path })
    const [error] = schema ? await schemaViolations(services, schema, [metadata], request.closed) : [null]
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
  // metadata_schemas_project serves the order.
  schemas.list({
    summary: 'List metadata schemas, oldest first',
    filters: { resource_type: oneOf('resource_type', RESOURCE_TYPES) },
    order: () => sql.fragment`t.created_at, t.id`,
  }),
  schemas.create({
    summary: 'Declare what metadata must satisfy under a path',
    description: 'Checked from now on when metadata is written or a path changes; stored metadata stays as it is.',
    body: MetadataSchemaInput,
    raises: ['NAME_CONFLICT'],
    check: ({ body, project, services }) => requireUsableSchema(services, { project_id: project, schema: body.schema }),
  }),
  validateMetadata,
  schemas.get(),
  schemas.action('audit', {
    summary: 'Find stored resources that a metadata schema would refuse',
    description:
      'In the order of their paths; a resource without metadata is checked as an empty object. Ends after ten seconds; ' +
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
    summary: 'Change the path or the schema of a metadata schema',
    description: 'Holds for writes from now on; what is stored already stays as it is until it is written again.',
    body: MetadataSchemaPatch,
    quiet: true,
    raises: ['NAME_CONFLICT'],
    async check({ project_id }, { body, services }) {
      if (body.schema !== undefined) await requireUsableSchema(services, { project_id, schema: body.schema })
    },
    // With the type, which a refusal by metadata_schemas_selector names.
    write: ({ id, resource_type, path_prefix, schema }, { tx }) =>
      metadataSchemaKind.update(tx, id, { resource_type, path_prefix, schema }),
  }),
  schemas.remove(),
]
