import { newId } from '../../core/api/ids.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { agentKind, configOf } from './model.ts'
import { agentsOf, insertAgent } from './store.ts'

/** An agent cannot be without its provider, so the providers that the copies name come along. */
export const agentCloning: Cloneable = {
  name: 'agents',
  async copy(tx, from, to, ids) {
    const agents = await agentsOf(tx, from)
    await copyProviders(tx, from, to, ids, new Set(agents.map(agent => agent.ai_provider_id)))
    for (const agent of agents) {
      const config = { ...configOf(agent), ai_provider_id: ids.get(agent.ai_provider_id) as string }
      const copy = await insertAgent(tx, newId(agentKind.prefix), to, config)
      ids.set(agent.id, copy.id)
      tx.emit(agentKind, 'created', copy)
    }
  },
}
