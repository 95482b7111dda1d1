import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const modelRouteErrors = {
  MODEL_ROUTE_HAS_DEPENDENTS: {
    status: 409,
    description: 'Route used by agents or a project default',
    hint: 'Update the resources counted in meta.counts to another route or a provider, then delete the route.',
  },
  MODEL_ROUTE_NOT_FOUND: {
    status: 400,
    description: 'Referenced route missing',
    message: 'Model route {id} not found in this project',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof modelRouteErrors> {}
}
