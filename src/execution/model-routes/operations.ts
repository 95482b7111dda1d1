import { refuseDependents } from '#core/api/dependents.ts'
import { columnFilter, containsFilter } from '#core/api/filters.ts'
import { textFilter } from '#core/api/lists.ts'
import type { Operation } from '#core/api/operation.ts'
import { requireAll } from '#core/api/references.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { aiProviderKind } from '../providers/model.ts'
import { ModelRouteInput, ModelRoutePatch, modelRouteKind, targetProviderIds } from './model.ts'

const routes = resource(modelRouteKind, { path: '/model-routes', tag: 'Model routes' })

const raises = ['AI_PROVIDER_NOT_FOUND', 'NAME_CONFLICT'] as const

const updateOperation = (method: 'patch' | 'put', id: string, summary: string): Operation =>
  routes.update({
    method,
    id,
    summary,
    description:
      'Omitted fields are unchanged; targets are replaced as a whole. Running turns use the new route from their next step.',
    body: ModelRoutePatch,
    raises: [...raises],
    async change(next, { tx, body }) {
      if (!body.targets) return
      const ai_provider_ids = targetProviderIds(body.targets)
      await requireAll(tx, aiProviderKind, next.project_id, ai_provider_ids)
      return { ...next, ai_provider_ids }
    },
  })

export const modelRouteOperations: Operation[] = [
  // model_routes_project serves the order, model_routes_providers the filter by provider.
  routes.list({
    filters: {
      name: containsFilter('name'),
      ai_provider_id: columnFilter(
        textFilter.describe('ID of a provider used by a target'),
        id => sql.fragment`t.ai_provider_ids @> ${sql.array([id], 'text')}`,
      ),
    },
  }),
  routes.create({
    description: 'Calls go to the first target and fail over to the next one.',
    body: ModelRouteInput,
    raises: [...raises],
    async make({ tx, body, project }) {
      const ai_provider_ids = targetProviderIds(body.targets)
      await requireAll(tx, aiProviderKind, project, ai_provider_ids)
      return modelRouteKind.insert(tx, { ...body, ai_provider_ids, project_id: project })
    },
  }),
  routes.get(),
  updateOperation('patch', 'updateModelRoute', 'Update a model route'),
  updateOperation('put', 'putModelRoute', 'Update a model route (same as PATCH)'),
  routes.remove({
    description: 'Refused while an agent uses the route or it is the default of the project.',
    raises: ['MODEL_ROUTE_HAS_DEPENDENTS'],
    check: ({ id }, { tx }) =>
      refuseDependents(tx, modelRouteKind, id, { force: false, code: 'MODEL_ROUTE_HAS_DEPENDENTS' }),
  }),
]
