import { newId } from '../../core/api/ids.ts'
import { type Kind, type KindRow, pickFields, type Values } from '../../core/api/kind.ts'
import { copyAuthor, type VersionAuthor } from '../../core/api/version-archive.ts'
import { idStatement, type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { graphFields, orchestrationKind } from './model.ts'
import { listOrchestrationIds } from './store.ts'
import { versionedGraphs } from './versions.ts'

/**
 * Copies definitions without their versions and runs. References to definitions copied in the same operation are mapped
 * to the copies; other references are copied unchanged and reported as missing when used.
 * @param at.naming field that contains references
 * @param at.idsOf lists the IDs to copy, oldest first. Default: all of the project, by its index on project and
 *   creation time
 */
export function definitionCloning<Row extends KindRow>(at: {
  name: string
  kind: Kind<Row, any>
  fields: readonly (keyof Row & string)[]
  naming: keyof Row & string
  insert: (tx: Tx, values: any, author: VersionAuthor) => Promise<Row>
  idsOf?: (db: Queryable, project: string) => Promise<readonly string[]>
}): Cloneable {
  const { name, kind, fields, naming, insert } = at
  const all = (db: Queryable, project: string) =>
    db.anyFirst(idStatement`
      select id from ${sql.identifier([kind.table])} where project_id = ${project} order by created_at, id`)
  return {
    name,
    async copy(tx, from, to, ids, { caller }) {
      const originals = await (at.idsOf ?? all)(tx, from)
      // Definitions may refer to each other.
      for (const id of originals) ids.set(id, newId(kind.prefix))
      for (const id of originals) {
        const original = await kind.find(tx, id)
        if (!original) continue
        const values: Values<KindRow> = pickFields(original, ['name', 'description', ...fields])
        const copied = { [naming]: withIds(original[naming], ids), id: ids.get(id), project_id: to }
        tx.emit(kind, 'created', await insert(tx, { ...values, ...copied }, copyAuthor(caller)))
      }
    },
  }
}

export const orchestrationCloning = definitionCloning({
  name: 'orchestrations',
  kind: orchestrationKind,
  fields: graphFields,
  naming: 'nodes',
  insert: versionedGraphs.insert,
  idsOf: listOrchestrationIds,
})

/** Returns a value with all texts that are mapped IDs replaced. */
function withIds(value: unknown, ids: ReadonlyMap<string, string>): unknown {
  if (typeof value === 'string') return ids.get(value) ?? value
  if (Array.isArray(value)) return value.map(item => withIds(item, ids))
  if (!isObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withIds(item, ids)]))
}
