import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const workflowErrors = {
  WORKFLOW_HAS_OPEN_TASKS: {
    status: 409,
    description: 'Workflow has open tasks',
    message: 'Workflow has {open_tasks} open tasks',
    hint: 'Close or delete the open tasks, then delete the workflow.',
  },
  WORKFLOW_NOT_FOUND: {
    status: 404,
    description: 'Workflow missing',
    message: 'Workflow {id} not found',
  },
  WORKFLOW_VALIDATION_FAILED: {
    status: 400,
    description:
      'Workflow invalid (duplicate state names, not exactly one initial state, unknown transition state, malformed guard, on_enter dispatch without target)',
    hint: 'Fix the problems listed in meta.problems by path.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof workflowErrors> {}
}
