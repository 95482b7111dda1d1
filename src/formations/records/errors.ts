import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const formationErrors = {
  FORMATION_CONFLICT: {
    status: 409,
    description: 'Declared fields were changed outside the formation since the last deploy (see meta.conflicts)',
    hint: 'Deploy with force_conflicts to overwrite the changes, or add them to the template.',
  },
  FORMATION_DELETE_FAILED: {
    status: 409,
    description: 'Resources could not be deleted (see meta.failures); the formation is delete_failed',
    hint: 'Remove the dependents of the remaining resources, then repeat DELETE /formations/{formation_id}.',
  },
  FORMATION_HANDLER_FAILED: {
    status: 502,
    description: 'Handler of a registered resource type failed',
  },
  FORMATION_HAS_DEPENDENTS: {
    status: 409,
    description: 'An output is imported by other formations (see meta.importers)',
    hint: 'First deploy the formations in meta.importers without the import.',
  },
  FORMATION_INVALID_METADATA: {
    status: 400,
    description: 'Metadata of the formation contains an expression',
  },
  FORMATION_MISSING_PARAMETERS: { status: 400, description: 'Required template parameters are missing or empty' },
  FORMATION_OPERATION_IN_PROGRESS: {
    status: 409,
    description: 'Formation has an active operation',
    hint: 'Retry when GET /formations/{formation_id} reports that the operation has ended.',
  },
  FORMATION_PLAN_STALE: {
    status: 409,
    description: 'Saved plan no longer matches the current state',
    hint: 'Save a new plan with POST /formations/plan?save=true and apply it.',
  },
  FORMATION_PROTECTED: {
    status: 409,
    description: 'Formation is protected from deletion',
    hint: 'Set termination_protection to false with PATCH /formations/{formation_id}, then delete it.',
  },
  FORMATION_REPLACE_CLEANUP_FAILED: {
    status: 500,
    description:
      'Replaced resources could not be deleted; recorded on the formation and operation, never a response status',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof formationErrors> {}
}
