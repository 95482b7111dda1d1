import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const quotaErrors = {
  QUOTA_CONFLICT: {
    status: 409,
    description: 'Duplicate quota identity',
    message: 'A quota with the same scope, metric and window exists',
    hint: 'Change the quota that is there (GET /quotas lists them), or choose another scope, metric or window.',
  },
  QUOTA_EXCEEDED: {
    status: 429,
    description: 'Enforced flow quota exceeded',
    message: 'The quota {quota_id} is spent: {limit} {metric} in the window {window}',
  },
  QUOTA_STORAGE_EXCEEDED: {
    status: 409,
    description: 'Stored footprint over a storage_bytes quota',
    message: 'The quota {quota_id} allows {limit} stored bytes, and there are {current_bytes}',
    hint: 'Delete files, documents or other content, or raise the limit of the quota that meta.quota_id names.',
  },
  QUOTA_UNENFORCEABLE: {
    status: 409,
    description: 'Cost cap with on_unpriced block cannot be measured (pricing blackout)',
    message: 'The quota {quota_id} cannot be enforced: the cost of what was used in its window is not known',
    hint: 'Give the rows of meta.unpriced_rows a price, or set on_unpriced of the quota to allow or its mode to monitor.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof quotaErrors> {}
}
