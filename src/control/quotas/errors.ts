import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const quotaErrors = {
  QUOTA_CONFLICT: {
    status: 409,
    description: 'Quota with the same identity exists',
    message: 'Quota with the same scope, metric and window already exists',
    hint: 'Update the existing quota (GET /quotas) or choose another scope, metric or window.',
  },
  QUOTA_EXCEEDED: {
    status: 429,
    description: 'Enforced usage quota exceeded',
    message: 'Quota {quota_id} exceeded: {limit} {metric} in window {window}',
  },
  QUOTA_STORAGE_EXCEEDED: {
    status: 409,
    description: 'Stored bytes over a storage_bytes quota',
    message: 'Quota {quota_id} exceeded: {current_bytes} of {limit} stored bytes',
    hint: 'Delete files, documents or other content, or raise the limit of quota meta.quota_id with PATCH /quotas/{quota_id}.',
  },
  QUOTA_UNENFORCEABLE: {
    status: 409,
    description: 'Cost of a quota with on_unpriced=block cannot be measured',
    message: 'Quota {quota_id} cannot be enforced because usage in its window has no price',
    hint: 'Add prices for meta.unpriced_rows, or set on_unpriced to allow or mode to monitor with PATCH /quotas/{quota_id}.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof quotaErrors> {}
}
