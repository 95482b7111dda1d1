import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { anyOf, listTable, pageOf } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { sql } from '../../core/db/sql.ts'
import { auditSchema } from './audit.ts'
import { checkUsable, governing, violations } from './check.ts'
import {
  MetadataAudit,
  MetadataAuditInput,
  MetadataCheck,
  MetadataSchema,
  MetadataSchemaInput,
  MetadataSchemaPatch,
  type MetadataSchemaRow,
  MetadataVerdict,
  metadataSchemaKind,
  RESOURCE_TYPES,
} from './model.ts'
import { deleteSchema, insertSchema, updateSchema } from './store.ts'

const tag = 'Metadata schemas'

const createMetadataSchema = operation({
  id: 'createMetadataSchema',
  method: 'post',
  path: '/metadata-schemas',
  summary: 'Declare what metadata must satisfy under a path',
  description: 'Checked from now on when metadata is written or a path changes; what is stored already stays as it is.',
  tag,
  action: 'metadata-schemas:CreateMetadataSchema',
  creates: metadataSchemaKind,
  body: MetadataSchemaInput,
  answers: { 201: MetadataSchema },
  raises: ['NAME_CONFLICT'],
  async run({ body, project, services, tx }) {
    const project_id = project as string
    const { resource_type, path_prefix, schema } = body
    await checkUsable(services, { project_id, schema })
    const id = newId(metadataSchemaKind.prefix)
    const record = metadataSchemaKind.present(
      await insertSchema(tx, { id, project_id, resource_type, path_prefix, schema }),
    )
    tx.emit(
      metadataSchemaKind,
      'created',
      { id: (record as { id: string }).id, project_id: project_id },
      { data: record },
    )
    return record
  },
})

const listMetadataSchemas = operation({
  id: 'listMetadataSchemas',
  method: 'get',
  path: '/metadata-schemas',
  summary: 'List metadata schemas, oldest first',
  tag,
  action: 'metadata-schemas:ListMetadataSchemas',
  lists: metadataSchemaKind,
  query: z.object({ resource_type: anyOf(RESOURCE_TYPES) }),
  answers: { 200: pageOf(MetadataSchema) },
  // metadata_schemas_project serves the order.
  run: context =>
    listTable<MetadataSchemaRow>(context, {
      table: 'metadata_schemas',
      where: [
        context.query.resource_type &&
          sql.fragment`t.resource_type = any(${sql.array(context.query.resource_type, 'text')})`,
      ],
      order: sql.fragment`t.created_at, t.id`,
      present: metadataSchemaKind.present,
    }),
})

const validateMetadata = operation({
  id: 'validateMetadata',
  method: 'post',
  path: '/metadata-schemas/validate',
  summary: 'Check metadata as a write at a path would',
  tag,
  action: 'metadata-schemas:ListMetadataSchemas',
  creates: metadataSchemaKind,
  reads: true,
  body: MetadataCheck,
  answers: { 200: MetadataVerdict },
  async run({ body, db, project, request, services }) {
    const { metadata, path, resource_type } = body
    const schema = await governing(db, { project_id: project as string, resource_type, path })
    const [error] = schema ? await violations(services, schema, [metadata], request.closed) : [null]
    return {
      valid: error === null,
      resource_type,
      metadata_schema_id: error === null ? null : (schema?.id ?? null),
      path_prefix: error === null ? null : (schema?.path_prefix ?? null),
      error,
    }
  },
})

const getMetadataSchema = itemOperation(metadataSchemaKind, {
  id: 'getMetadataSchema',
  method: 'get',
  path: '/metadata-schemas/{metadata_schema_id}',
  summary: 'Read a metadata schema',
  tag,
  action: 'metadata-schemas:GetMetadataSchema',
  answers: { 200: MetadataSchema },
  run: async ({ resource }) => metadataSchemaKind.present(resource),
})

const auditMetadataSchema = itemOperation(metadataSchemaKind, {
  id: 'auditMetadataSchema',
  method: 'post',
  path: '/metadata-schemas/{metadata_schema_id}/audit',
  summary: 'Find stored resources that a metadata schema would refuse',
  description:
    'In the order of their paths; a resource without metadata is checked as an empty bag. Ends after ten seconds; ' +
    '`scanned` says how many resources were checked.',
  tag,
  action: 'metadata-schemas:GetMetadataSchema',
  alsoActions: ['documents:GetDocument', 'files:GetFile'],
  reads: true,
  body: MetadataAuditInput,
  bodyOptional: true,
  answers: { 200: MetadataAudit },
  run: context => auditSchema(context, context.resource, context.body?.limit ?? 100),
})

const updateMetadataSchema = itemOperation(metadataSchemaKind, {
  id: 'updateMetadataSchema',
  method: 'patch',
  path: '/metadata-schemas/{metadata_schema_id}',
  summary: 'Change the path or the schema of a metadata schema',
  tag,
  action: 'metadata-schemas:UpdateMetadataSchema',
  body: MetadataSchemaPatch,
  answers: { 200: MetadataSchema },
  raises: ['NAME_CONFLICT'],
  async run({ body, resource, services, tx }) {
    if (body.schema !== undefined) await checkUsable(services, { project_id: resource.project_id, schema: body.schema })
    const stored = await metadataSchemaKind.find(tx, resource.id, true)
    if (!stored) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    const next = {
      ...stored,
      path_prefix: body.path_prefix ?? stored.path_prefix,
      schema: body.schema ?? stored.schema,
    }
    if (next.path_prefix === stored.path_prefix && next.schema === stored.schema)
      return metadataSchemaKind.present(stored)
    const record = metadataSchemaKind.present(await updateSchema(tx, next))
    tx.emit(
      metadataSchemaKind,
      'updated',
      { id: (record as { id: string }).id, project_id: stored.project_id },
      { data: record },
    )
    return record
  },
})

const deleteMetadataSchema = itemOperation(metadataSchemaKind, {
  id: 'deleteMetadataSchema',
  method: 'delete',
  path: '/metadata-schemas/{metadata_schema_id}',
  summary: 'Delete a metadata schema',
  tag,
  action: 'metadata-schemas:DeleteMetadataSchema',
  answers: { 204: null },
  async run({ resource, tx }) {
    const stored = await metadataSchemaKind.find(tx, resource.id, true)
    if (!stored) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    await deleteSchema(tx, stored.id)
    tx.emit(metadataSchemaKind, 'deleted', stored)
  },
})

export const metadataSchemaOperations: Operation[] = [
  listMetadataSchemas,
  createMetadataSchema,
  validateMetadata,
  getMetadataSchema,
  auditMetadataSchema,
  updateMetadataSchema,
  deleteMetadataSchema,
]
