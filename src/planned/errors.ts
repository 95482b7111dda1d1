import type { Codes, ErrorTable } from '../core/api/errors.ts'

export const plannedErrors = {
  FORMATION_DELETE_FAILED: {
    status: 409,
    description: 'Some resources could not be deleted; stack left delete_failed',
  },
  FORMATION_HANDLER_FAILED: {
    status: 502,
    description: 'External handler for an operator-registered resource type failed',
  },
  FORMATION_INVALID_METADATA: {
    status: 400,
    description: 'Formation-level metadata contains a substitution expression',
  },
  FORMATION_MISSING_PARAMETERS: { status: 400, description: 'Required template parameters not supplied or empty' },
  FORMATION_OPERATION_IN_PROGRESS: { status: 409, description: 'Write on a formation whose operation runs' },
  FORMATION_PLAN_STALE: { status: 409, description: 'Saved plan no longer matches live state' },
  FORMATION_PROTECTED: { status: 409, description: 'Delete of a protected formation' },
  FORMATION_REPLACE_CLEANUP_FAILED: {
    status: 500,
    description:
      'Superseded resource not deleted after replacement; carried on the formation and operation, never a response status',
  },
} as const satisfies ErrorTable

declare module '../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof plannedErrors> {}
}
