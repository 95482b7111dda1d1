import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const workflowErrors = {
  WORKFLOW_HAS_OPEN_TASKS: {
    status: 409,
    description: 'Workflow has open tasks',
    message: 'The workflow has {open_tasks} open tasks',
    hint: 'meta.open_tasks counts them: close or delete them first.',
  },
  WORKFLOW_NOT_FOUND: {
    status: 404,
    description: 'Workflow missing',
    message: 'There is no workflow {id}',
  },
  WORKFLOW_VALIDATION_FAILED: {
    status: 400,
    description:
      'Workflow invalid (duplicate state names, not exactly one initial state, unknown transition state, malformed guard, on_enter dispatch without target)',
    hint: 'meta.problems lists everything that is wrong with the definition by its path.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof workflowErrors> {}
}
