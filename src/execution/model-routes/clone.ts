import type { Tx } from '../../core/db/writer.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { modelRouteKind, providersNamed } from './model.ts'
import { routesOf } from './store.ts'

/** Copies routes of a project that were not copied before, with the providers of their targets; `only` names them by id. */
export async function copyRoutes(
  tx: Tx,
  from: string,
  to: string,
  ids: Map<string, string>,
  only?: ReadonlySet<string | null>,
): Promise<void> {
  const routes = (await routesOf(tx, from)).filter(({ id }) => !ids.has(id) && (!only || only.has(id)))
  await copyProviders(tx, from, to, ids, new Set(routes.flatMap(({ ai_provider_ids }) => ai_provider_ids)))
  for (const { id, created_at: _created, updated_at: _updated, ...route } of routes) {
    const targets = route.targets.map(target => ({
      ...target,
      ai_provider_id: ids.get(target.ai_provider_id) as string,
    }))
    const named = { targets, ai_provider_ids: providersNamed(targets) }
    const copy = await modelRouteKind.insert(tx, { ...route, ...named, project_id: to })
    ids.set(id, copy.id)
    tx.emit(modelRouteKind, 'created', copy)
  }
}

export const routeCloning: Cloneable = {
  name: 'model_routes',
  copy: (tx, from, to, ids) => copyRoutes(tx, from, to, ids),
}
