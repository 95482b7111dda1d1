import type { Tx } from '#core/writes/writer.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { modelRouteKind, targetProviderIds } from './model.ts'
import { listProjectRoutes } from './store.ts'

/**
 * Copies the routes of a project, or only those in `only`, unless they were copied, with the providers of their
 * targets.
 */
export async function copyRoutes(
  tx: Tx,
  from: string,
  to: string,
  ids: Map<string, string>,
  only?: ReadonlySet<string | null>,
): Promise<void> {
  const routes = (await listProjectRoutes(tx, from)).filter(({ id }) => !ids.has(id) && (!only || only.has(id)))
  await copyProviders(tx, from, to, ids, new Set(routes.flatMap(({ ai_provider_ids }) => ai_provider_ids)))
  for (const { id, created_at: _created, updated_at: _updated, ...route } of routes) {
    const targets = route.targets.map(target => ({
      ...target,
      ai_provider_id: ids.get(target.ai_provider_id) as string,
    }))
    const references = { targets, ai_provider_ids: targetProviderIds(targets) }
    const copy = await modelRouteKind.insert(tx, { ...route, ...references, project_id: to })
    ids.set(id, copy.id)
    tx.emit(modelRouteKind, 'created', copy)
  }
}

export const routeCloning: Cloneable = {
  name: 'model_routes',
  copy: (tx, from, to, ids) => copyRoutes(tx, from, to, ids),
}
