import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const projectErrors = {
  PROJECT_DEFAULT_ROUTE_INHERITED: {
    status: 409,
    description: 'Default_model_route_id cannot be cleared while consumers inherit it; repointing is allowed',
    message: 'The default model route cannot be cleared while {count} resources inherit it; another may be named',
    hint: 'Name another default_model_route_id, or give what meta.counts counts a provider or a route of its own first.',
  },
  PROJECT_HAS_DEPENDENTS: {
    status: 409,
    description: 'Project has dependents; force=true deletes them too',
    message: 'The project still holds resources; force=true deletes them too',
    hint: 'Delete what meta.counts counts first, or repeat with force=true, which deletes all of it.',
  },
  PROJECT_NOT_PAUSED: {
    status: 409,
    description: 'Resume of a project that is not paused',
    message: 'The project {project_id} is not paused',
    hint: 'Nothing is to be resumed.',
  },
  PROJECT_PAUSED: {
    status: 409,
    description: 'Work started, or one run or task resumed, in a paused project',
    message: 'The project {project_id} is paused',
    hint: 'Have the project resumed with POST /projects/{project_id}/resume, then repeat.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof projectErrors> {}
}
