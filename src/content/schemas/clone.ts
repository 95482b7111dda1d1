import type { Cloneable } from '#identity/projects/clone.ts'
import { metadataSchemaKind } from './model.ts'
import { listSchemas } from './store.ts'

export const schemaCloning: Cloneable = {
  name: 'metadata_schemas',
  async copy(tx, from, to, ids) {
    for (const row of await listSchemas(tx, from)) {
      const { resource_type, path_prefix, schema } = row
      const copy = await metadataSchemaKind.insert(tx, { project_id: to, resource_type, path_prefix, schema })
      ids.set(row.id, copy.id)
      tx.emit(metadataSchemaKind, 'created', copy)
    }
  },
}
