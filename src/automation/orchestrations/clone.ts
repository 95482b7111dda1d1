import { newId } from '../../core/api/ids.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { type Node, orchestrationKind } from './model.ts'
import { orchestrationIdsOf } from './store.ts'
import { insertOrchestration } from './versions.ts'

/**
 * Graphs are copied as they are, without versions and runs. Ids of what was copied too become those of the copies, wherever
 * in a node they stand; others stay and are found missing when a run comes to them.
 */
export const orchestrationCloning: Cloneable = {
  name: 'orchestrations',
  async copy(tx, from, to, ids) {
    const originals = await orchestrationIdsOf(tx, from)
    // Graphs may name each other.
    for (const id of originals) ids.set(id, newId(orchestrationKind.prefix))
    for (const id of originals) {
      const original = await orchestrationKind.find(tx, id)
      if (!original) continue
      const { name, description, nodes, edges, state_schema, input_schema } = original
      const values = { name, description, edges, state_schema, input_schema, id: ids.get(id), project_id: to }
      const copied = nodes.map(node => withIds(node, ids) as Node)
      const copy = await insertOrchestration(tx, { ...values, nodes: copied }, { created_by: null })
      tx.emit(orchestrationKind, 'created', copy)
    }
  },
}

/** A value with every text in it that is a known id replaced. */
export function withIds(value: unknown, ids: ReadonlyMap<string, string>): unknown {
  if (typeof value === 'string') return ids.get(value) ?? value
  if (Array.isArray(value)) return value.map(item => withIds(item, ids))
  if (!isObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withIds(item, ids)]))
}
