import type { CodesOf, ErrorTable } from '../core/api/errors.ts'

export const formationErrors = {
  FORMATION_CONFLICT: {
    status: 409,
    description: 'A declared field was changed by somebody else since the last deploy; meta.conflicts',
    hint: 'Read the plan, then deploy with force_conflicts to overwrite, or take the changes into the template.',
  },
  FORMATION_DELETE_FAILED: {
    status: 409,
    description: 'Some resources could not be deleted; the formation is delete_failed',
    hint: 'Remove what holds the resources that are left, then delete the formation again.',
  },
  FORMATION_HANDLER_FAILED: {
    status: 502,
    description: 'External handler for an operator-registered resource type failed',
  },
  FORMATION_HAS_DEPENDENTS: {
    status: 409,
    description: 'An output is imported by other formations; meta.importers',
    hint: 'Deploy the formations of meta.importers without the import first.',
  },
  FORMATION_INVALID_METADATA: {
    status: 400,
    description: 'Formation-level metadata contains a substitution expression',
  },
  FORMATION_MISSING_PARAMETERS: { status: 400, description: 'Required template parameters not supplied or empty' },
  FORMATION_OPERATION_IN_PROGRESS: {
    status: 409,
    description: 'Write on a formation whose operation runs',
    hint: 'Wait until the operation of the formation has ended, then repeat.',
  },
  FORMATION_PLAN_STALE: {
    status: 409,
    description: 'Saved plan no longer matches live state',
    hint: 'Make another plan of the formation and apply that one.',
  },
  FORMATION_PROTECTED: {
    status: 409,
    description: 'Delete of a protected formation',
    hint: 'Take the protection off the formation, then delete it.',
  },
  FORMATION_REPLACE_CLEANUP_FAILED: {
    status: 500,
    description:
      'Superseded resource not deleted after replacement; carried on the formation and operation, never a response status',
  },
} as const satisfies ErrorTable

declare module '../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof formationErrors> {}
}
