import { newId } from '../../core/api/ids.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { metadataSchemaKind } from './model.ts'
import { insertSchema, schemasOf } from './store.ts'

export const schemaCloning: Cloneable = {
  name: 'metadata_schemas',
  async copy(tx, from, to, ids) {
    for (const schema of await schemasOf(tx, from)) {
      const copy = await insertSchema(tx, { ...schema, id: newId(metadataSchemaKind.prefix), project_id: to })
      ids.set(schema.id, copy.id)
      tx.emit(metadataSchemaKind, 'created', copy)
    }
  },
}
