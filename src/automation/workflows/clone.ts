import { newId } from '../../core/api/ids.ts'
import { identifying } from '../../core/db/sql.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { withIds } from '../orchestrations/clone.ts'
import { workflowKind } from './model.ts'
import { insertWorkflow } from './versions.ts'

/**
 * Definitions are copied as they are, without versions and tasks. Ids of what was copied too become those of the copies;
 * others stay, and a dispatch of them fails.
 */
export const workflowCloning: Cloneable = {
  name: 'workflows',
  async copy(tx, from, to, ids) {
    // By workflows_project.
    const originals = await tx.anyFirst(identifying`
      select id from workflows where project_id = ${from} order by created_at, id`)
    for (const id of originals) {
      const original = await workflowKind.find(tx, id)
      if (!original) continue
      const { name, description, states, transitions, payload_schema } = original
      ids.set(id, newId(workflowKind.prefix))
      const copy = await insertWorkflow(
        tx,
        {
          id: ids.get(id),
          project_id: to,
          name,
          description,
          states: withIds(states, ids) as typeof states,
          transitions,
          payload_schema,
        },
        { created_by: null },
      )
      tx.emit(workflowKind, 'created', copy)
    }
  },
}
