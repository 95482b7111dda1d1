import type { Cloneable } from '../../identity/projects/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { agentKind } from './model.ts'
import { agentsOf } from './store.ts'

/** An agent cannot be without its provider, so the providers that the copies name come along. */
export const agentCloning: Cloneable = {
  name: 'agents',
  async copy(tx, from, to, ids) {
    const agents = await agentsOf(tx, from)
    await copyProviders(tx, from, to, ids, new Set(agents.map(agent => agent.ai_provider_id)))
    for (const agent of agents) {
      const { id, version: _version, created_at: _created, updated_at: _updated, ...config } = agent
      const ai_provider_id = ids.get(agent.ai_provider_id) as string
      const copy = await agentKind.insert(tx, { ...config, project_id: to, ai_provider_id })
      ids.set(id, copy.id)
      tx.emit(agentKind, 'created', copy)
    }
  },
}
