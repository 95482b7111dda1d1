import { newId } from '../../core/api/ids.ts'
import { identifying } from '../../core/db/sql.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { withIds } from '../orchestrations/clone.ts'
import { playbookKind } from './model.ts'
import { definitionOf, insertPlaybook } from './versions.ts'

/**
 * Procedures are copied as they are, without versions and executions. Ids of what was copied too become those of the
 * copies; others stay, and a step that names one fails.
 */
export const playbookCloning: Cloneable = {
  name: 'playbooks',
  async copy(tx, from, to, ids) {
    // By playbooks_project.
    const originals = await tx.anyFirst(identifying`
      select id from playbooks where project_id = ${from} order by created_at, id`)
    for (const id of originals) {
      const original = await playbookKind.find(tx, id)
      if (!original) continue
      const { name, description } = original
      const { steps, ...others } = definitionOf(original)
      ids.set(id, newId(playbookKind.prefix))
      const copied = withIds(steps, ids) as typeof steps
      const values = { id: ids.get(id), project_id: to, name, description, ...others, steps: copied }
      tx.emit(playbookKind, 'created', await insertPlaybook(tx, values as never, { created_by: null }))
    }
  },
}
