import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const playbookErrors = {
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: {
    status: 409,
    description: 'Delete of a playbook in use',
    message: 'Executions of the playbook are under way; meta.active_executions counts them',
  },
  PLAYBOOK_VALIDATION_FAILED: {
    status: 400,
    description: 'Playbook definition invalid',
    hint: 'meta.problems lists everything that is wrong with the playbook by its path.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof playbookErrors> {}
}
