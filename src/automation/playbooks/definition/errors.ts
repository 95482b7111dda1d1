import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const playbookErrors = {
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: {
    status: 409,
    description: 'Delete of a playbook in use',
    message: 'Playbook has {active_executions} active executions',
    hint: 'Cancel the executions with POST /playbook-executions/{execution_id}/cancel or wait for them to end, then delete the playbook.',
  },
  PLAYBOOK_VALIDATION_FAILED: {
    status: 400,
    description: 'Playbook definition invalid',
    hint: 'Fix the problems listed in meta.problems by path.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof playbookErrors> {}
}
