import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const guardrailErrors = {
  GUARDRAIL_HAS_REFERENCES: {
    status: 409,
    description: 'Guardrail still attached; detach first (guardrails:DetachGuardrail)',
    message: 'Guardrail {id} is attached to other resources and cannot be deleted',
    hint: 'Detach the guardrail from the resources in meta.references, which requires guardrails:DetachGuardrail.',
  },
  GUARDRAIL_NOT_FOUND: {
    status: 400,
    description: 'Guardrail in guardrail_ids missing',
    message: 'Guardrail {id} not found in this project',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof guardrailErrors> {}
}
