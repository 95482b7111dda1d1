import type { Cloneable } from '../../identity/projects/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { configOf, insertAgent } from './archive.ts'
import { agentKind } from './model.ts'
import { agentsOf } from './store.ts'

/** An agent cannot be without its provider, so the providers that the copies name come along. Versions and releases do not. */
export const agentCloning: Cloneable = {
  name: 'agents',
  async copy(tx, from, to, ids) {
    const agents = await agentsOf(tx, from)
    await copyProviders(tx, from, to, ids, new Set(agents.map(agent => agent.ai_provider_id)))
    for (const agent of agents) {
      const ai_provider_id = ids.get(agent.ai_provider_id) as string
      const copy = await insertAgent(tx, { ...configOf(agent), project_id: to, ai_provider_id }, { created_by: null })
      ids.set(agent.id, copy.id)
      tx.emit(agentKind, 'created', copy)
    }
  },
}
