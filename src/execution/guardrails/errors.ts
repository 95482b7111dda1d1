import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const guardrailErrors = {
  GUARDRAIL_HAS_REFERENCES: {
    status: 409,
    description: 'Guardrail still attached; detach first (guardrails:DetachGuardrail)',
    message: 'The guardrail is attached to something; detach it first',
    hint: 'Take the guardrail off what meta.references names, which needs guardrails:DetachGuardrail, then delete it.',
  },
  GUARDRAIL_NOT_FOUND: {
    status: 400,
    description: 'Guardrail in guardrail_ids missing',
    message: 'The guardrail {id} does not exist in the project',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof guardrailErrors> {}
}
