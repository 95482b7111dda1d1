import { refuseDependents } from '../../core/api/dependents.ts'
import { columnFilter, containsFilter } from '../../core/api/filters.ts'
import { textFilter } from '../../core/api/lists.ts'
import type { Operation } from '../../core/api/operation.ts'
import { requireAll } from '../../core/api/references.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { aiProviderKind } from '../providers/model.ts'
import { ModelRouteInput, ModelRoutePatch, modelRouteKind, providersNamed } from './model.ts'

const routes = resource(modelRouteKind, { path: '/model-routes', tag: 'Model routes' })

const raises = ['AI_PROVIDER_NOT_FOUND', 'NAME_CONFLICT'] as const

const change = (method: 'patch' | 'put', id: string, summary: string): Operation =>
  routes.update({
    method,
    id,
    summary,
    description:
      'Fields that are left out stay as they are; targets are replaced whole. Running turns go by it from their next step.',
    body: ModelRoutePatch,
    raises: [...raises],
    async change(next, { tx, body }) {
      if (!body.targets) return
      const ai_provider_ids = providersNamed(body.targets)
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
        textFilter.describe('Routes with a target of this provider'),
        id => sql.fragment`t.ai_provider_ids @> ${sql.array([id], 'text')}`,
      ),
    },
  }),
  routes.create({
    description: 'Calls of its consumers go to the first target, and to the next one where it fails.',
    body: ModelRouteInput,
    raises: [...raises],
    async make({ tx, body, project }) {
      const ai_provider_ids = providersNamed(body.targets)
      await requireAll(tx, aiProviderKind, project, ai_provider_ids)
      return modelRouteKind.insert(tx, { ...body, ai_provider_ids, project_id: project })
    },
  }),
  routes.get(),
  change('patch', 'updateModelRoute', 'Change a model route'),
  change('put', 'putModelRoute', 'Change a model route, as PATCH does'),
  routes.remove({
    description: 'Refused while an agent names it, or it is the default of the project.',
    raises: ['MODEL_ROUTE_HAS_DEPENDENTS'],
    check: ({ id }, { tx }) =>
      refuseDependents(tx, modelRouteKind, id, { force: false, code: 'MODEL_ROUTE_HAS_DEPENDENTS' }),
  }),
]
