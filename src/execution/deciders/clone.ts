import { copyAuthor } from '#core/resources/version.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { deciderKind, deciderVersions } from './model.ts'
import { listProjectDeciders } from './store.ts'

/** Copies deciders whose agent or tool was copied; versions and decisions are not copied. */
export const deciderCloning: Cloneable = {
  name: 'deciders',
  async copy(tx, from, to, ids, { caller }) {
    for (const { id, agent_id, tool_id, name, description, escalate_below, questions } of await listProjectDeciders(
      tx,
      from,
    )) {
      const backend = ids.get((agent_id ?? tool_id) as string)
      if (backend === undefined) continue
      const reference = agent_id === null ? { tool_id: backend } : { agent_id: backend }
      const values = { name, description, escalate_below, questions, ...reference, project_id: to }
      const copy = await deciderVersions.insert(tx, values, copyAuthor(caller))
      ids.set(id, copy.id)
      tx.emit(deciderKind, 'created', copy)
    }
  },
}
