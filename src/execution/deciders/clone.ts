import { copiedBy } from '../../core/api/version-archive.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { deciderKind } from './model.ts'
import { decidersOf } from './store.ts'
import { versionedDeciders } from './versions.ts'

/** A decider is copied where the agent or the tool that it asks is; versions and decisions are not. */
export const deciderCloning: Cloneable = {
  name: 'deciders',
  async copy(tx, from, to, ids, { caller }) {
    for (const { id, agent_id, tool_id, name, description, escalate_below, questions } of await decidersOf(tx, from)) {
      const backend = ids.get((agent_id ?? tool_id) as string)
      if (backend === undefined) continue
      const asked = agent_id === null ? { tool_id: backend } : { agent_id: backend }
      const values = { name, description, escalate_below, questions, ...asked, project_id: to }
      const copy = await versionedDeciders.insert(tx, values, copiedBy(caller))
      ids.set(id, copy.id)
      tx.emit(deciderKind, 'created', copy)
    }
  },
}
