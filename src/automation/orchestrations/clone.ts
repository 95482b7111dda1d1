import { newId } from '../../core/api/ids.ts'
import { type Kind, type KindRow, pickFields, type Values } from '../../core/api/kind.ts'
import { copiedBy, type VersionAuthor } from '../../core/api/version-archive.ts'
import { idStatement, type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { graphFields, orchestrationKind } from './model.ts'
import { orchestrationIdsOf } from './store.ts'
import { versionedGraphs } from './versions.ts'

/**
 * Definitions are copied as they are, without versions and what was made of them. Ids of what was copied too become those
 * of the copies, wherever in the field that names others they stand; others stay and are found missing when they are used.
 * @param at.naming the field that names others
 * @param at.idsOf those of a project, oldest first; default all of them, by an index of project and time
 */
export function definitionCloning<Row extends KindRow>(at: {
  name: string
  kind: Kind<Row, any>
  fields: readonly (keyof Row & string)[]
  naming: keyof Row & string
  insert: (tx: Tx, values: any, making: VersionAuthor) => Promise<Row>
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
      // They may name each other.
      for (const id of originals) ids.set(id, newId(kind.prefix))
      for (const id of originals) {
        const original = await kind.find(tx, id)
        if (!original) continue
        const values: Values<KindRow> = pickFields(original, ['name', 'description', ...fields])
        const copied = { [naming]: withIds(original[naming], ids), id: ids.get(id), project_id: to }
        tx.emit(kind, 'created', await insert(tx, { ...values, ...copied }, copiedBy(caller)))
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
  idsOf: orchestrationIdsOf,
})

/** A value with every text in it that is a known id replaced. */
function withIds(value: unknown, ids: ReadonlyMap<string, string>): unknown {
  if (typeof value === 'string') return ids.get(value) ?? value
  if (Array.isArray(value)) return value.map(item => withIds(item, ids))
  if (!isObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withIds(item, ids)]))
}
