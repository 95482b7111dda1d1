import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { schemaCloning } from './clone.ts'
import { metadataSchemaKind } from './model.ts'
import { metadataSchemaOperations } from './operations.ts'

export default module('metadata schemas', {
  tags: { 'Metadata schemas': 'JSON Schemas for the metadata of files and documents, by path.' },
  kinds: [metadataSchemaKind],
  resourceTypes: [resourceType(metadataSchemaKind, { replaced: ['resource_type'] })],
  operations: metadataSchemaOperations,
  extensions: [cloneables.with(schemaCloning)],
})
