import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const modelRouteErrors = {
  MODEL_ROUTE_HAS_DEPENDENTS: {
    status: 409,
    description: 'Route used by agents or a project default',
    hint: 'Have what meta.counts counts name another route or a provider, then delete the route.',
  },
  MODEL_ROUTE_NOT_FOUND: {
    status: 400,
    description: 'Referenced route missing',
    message: 'The model route {id} does not exist in the project',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof modelRouteErrors> {}
}
