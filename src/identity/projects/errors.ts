import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const projectErrors = {
  PROJECT_DEFAULT_ROUTE_INHERITED: {
    status: 409,
    description: 'Default_model_route_id cannot be cleared while consumers inherit it; repointing is allowed',
    message: 'The default model route cannot be cleared while something inherits it; another may be named',
  },
  PROJECT_HAS_DEPENDENTS: {
    status: 409,
    description: 'Project has dependents; force=true deletes them too',
    message: 'The project still holds resources; force=true deletes them too',
  },
  PROJECT_NOT_PAUSED: {
    status: 409,
    description: 'Resume of a project that is not paused',
    message: 'The project is not paused',
  },
  PROJECT_PAUSED: {
    status: 409,
    description: 'Work started, or one run or task resumed, in a paused project',
    message: 'The project is paused',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof projectErrors> {}
}
