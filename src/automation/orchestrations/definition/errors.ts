import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const orchestrationErrors = {
  ORCHESTRATION_NOT_FOUND: {
    status: 404,
    description: 'Orchestration missing',
    message: 'Orchestration {id} not found',
  },
  ORCHESTRATION_VALIDATION_FAILED: {
    status: 400,
    description:
      'Graph invalid (dangling edge, missing field, cycle, input_mapping naming a state key no upstream node writes)',
    hint: 'Fix the problems listed in meta.problems by path; meta.warnings do not prevent the write.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof orchestrationErrors> {}
}
