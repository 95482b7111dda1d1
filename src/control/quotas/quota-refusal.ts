import { raise } from '#core/base/errors.ts'
import type { QuotaScope } from './model.ts'
import type { QuotaMeasurement } from './store.ts'
import { retryAfter, type Window } from './windows.ts'

const specificity: readonly QuotaScope[] = ['actor', 'agent', 'api_key', 'project']

/** Returns the breach to report: the most specific scope, then the lowest quota id. */
export const mostSpecificBreach = <T extends { quota: Pick<QuotaMeasurement, 'id' | 'scope'> }>(
  breaches: readonly T[],
): T | undefined =>
  breaches.toSorted(
    (a, b) =>
      specificity.indexOf(a.quota.scope) - specificity.indexOf(b.quota.scope) || (a.quota.id < b.quota.id ? -1 : 1),
  )[0]

/** @throws QUOTA_EXCEEDED */
export function refuseExceeded({ quota, window }: { quota: QuotaMeasurement; window: Window }, now: Date): never {
  const resets_at = window.resets_at as string
  return raise('QUOTA_EXCEEDED', {
    meta: { quota_id: quota.id, metric: quota.metric, limit: quota.limit, window: quota.window, resets_at },
    headers: { 'Retry-After': String(retryAfter(resets_at, now)) },
  })
}
