import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const playbookErrors = {
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: {
    status: 409,
    description: 'Delete of a playbook in use',
    message: '{active_executions} executions of the playbook are under way',
    hint: 'Wait until they have ended, or end them with POST /playbook-executions/{execution_id}/cancel, then delete the playbook.',
  },
  PLAYBOOK_VALIDATION_FAILED: {
    status: 400,
    description: 'Playbook definition invalid',
    hint: 'meta.problems lists everything that is wrong with the playbook by its path.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof playbookErrors> {}
}
