import type { Cloneable } from '../../identity/projects/clone.ts'
import { projectKind } from '../../identity/projects/model.ts'
import { copyRoutes } from '../model-routes/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { configOf, insertAgent } from './archive.ts'
import { agentKind } from './model.ts'
import { agentsOf } from './store.ts'

/**
 * An agent cannot be without what its calls go to, so the providers and routes of the copies come along, the default too.
 * Versions and releases do not.
 */
export const agentCloning: Cloneable = {
  name: 'agents',
  async copy(tx, from, to, ids) {
    const agents = await agentsOf(tx, from)
    const inherited = (await projectKind.find(tx, from))?.default_model_route_id ?? null
    const routes = agents.map(agent => agent.model_route_id ?? (agent.ai_provider_id === null ? inherited : null))
    await copyProviders(tx, from, to, ids, new Set(agents.map(agent => agent.ai_provider_id)))
    await copyRoutes(tx, from, to, ids, new Set(routes))
    for (const agent of agents) {
      const copied = (named: string | null) => named && (ids.get(named) as string)
      const bound = { ai_provider_id: copied(agent.ai_provider_id), model_route_id: copied(agent.model_route_id) }
      const copy = await insertAgent(tx, { ...configOf(agent), ...bound, project_id: to }, { created_by: null })
      ids.set(agent.id, copy.id)
      tx.emit(agentKind, 'created', copy)
    }
  },
}
