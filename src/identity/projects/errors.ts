import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const projectErrors = {
  PROJECT_DEFAULT_ROUTE_INHERITED: {
    status: 409,
    description: 'Default model route is inherited and cannot be cleared; it can be replaced',
    message: 'Default model route is inherited by {count} resources and cannot be cleared',
    hint: 'Set another default_model_route_id, or set a provider or model route on the resources in meta.counts first.',
  },
  PROJECT_HAS_DEPENDENTS: {
    status: 409,
    description: 'Project has resources; force=true deletes them too',
    message: 'Project still has resources',
    hint: 'Delete the resources in meta.counts first, or repeat with force=true, which deletes them too.',
  },
  PROJECT_NOT_PAUSED: {
    status: 409,
    description: 'Project is not paused and cannot be resumed',
    message: 'Project {project_id} is not paused',
    hint: 'Check paused_at with GET /projects/{project_id}.',
  },
  PROJECT_PAUSED: {
    status: 409,
    description: 'Project is paused and starts no work',
    message: 'Project {project_id} is paused',
    hint: 'Resume the project with POST /projects/{project_id}/resume, then repeat the request.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof projectErrors> {}
}
