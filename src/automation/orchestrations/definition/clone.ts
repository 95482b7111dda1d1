import { type KindRow, pickFields } from '#core/api/kind.ts'
import { isObject } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'
import { copyAuthor, type VersionAuthor } from '#core/resources/version.ts'
import type { Versions } from '#core/resources/versioned.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { orchestrationVersions } from './model.ts'
import { listOrchestrationIds } from './store.ts'

/**
 * Copies definitions without their versions and runs. References to definitions copied in the same operation are mapped
 * to the copies; other references are copied unchanged and reported as missing when used.
 * @param at.naming field that contains references
 * @param at.insert default: the row with its first version
 * @param at.idsOf lists the IDs to copy, oldest first. Default: all of the project, by its index on project and
 *   creation time
 */
export function definitionCloning(
  versions: Versions,
  at: {
    naming: string
    insert?: (tx: Tx, values: any, author: VersionAuthor) => Promise<KindRow>
    idsOf?: (db: Queryable, project: string) => Promise<readonly string[]>
  },
): Cloneable {
  const { naming, insert = (tx, values, author) => versions.insert(tx, values, author) } = at
  const { kind, fields } = versions
  const all = (db: Queryable, project: string) =>
    db.anyFirst(idStatement`
      select id from ${sql.identifier([kind.table])} where project_id = ${project} order by created_at, id`)
  return {
    name: kind.plural,
    async copy(tx, from, to, ids, { caller }) {
      const originals = await (at.idsOf ?? all)(tx, from)
      // Definitions may refer to each other.
      for (const id of originals) ids.set(id, newId(kind.prefix))
      for (const id of originals) {
        const original = await kind.find(tx, id)
        if (!original) continue
        const values = {
          ...pickFields(original, ['name', 'description', 'a2a', ...fields]),
          [naming]: withIds(original[naming], ids),
          id: ids.get(id),
          project_id: to,
        }
        tx.emit(kind, 'created', await insert(tx, values, copyAuthor(caller)))
      }
    },
  }
}

export const orchestrationCloning = definitionCloning(orchestrationVersions, {
  naming: 'nodes',
  idsOf: listOrchestrationIds,
})

/** Returns a value with all texts that are mapped IDs replaced. */
function withIds(value: unknown, ids: ReadonlyMap<string, string>): unknown {
  if (typeof value === 'string') return ids.get(value) ?? value
  if (Array.isArray(value)) return value.map(item => withIds(item, ids))
  if (!isObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withIds(item, ids)]))
}
