import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const orchestrationErrors = {
  ORCHESTRATION_NOT_FOUND: {
    status: 404,
    description: 'Orchestration missing',
    message: 'There is no orchestration {id}',
  },
  ORCHESTRATION_VALIDATION_FAILED: {
    status: 400,
    description:
      'Graph invalid (dangling edge, missing field, cycle, input_mapping naming a state key no upstream node writes)',
    hint: 'meta.problems lists everything that is wrong with the graph by its path; meta.warnings does not refuse it.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof orchestrationErrors> {}
}
