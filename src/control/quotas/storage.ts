import { raise } from '../../core/api/errors.ts'
import { onSeparateConnection } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { quotasOf } from './quota-cache.ts'
import { reportLater } from './report.ts'
import { storageQuotas } from './store.ts'
import { windowOf } from './windows.ts'

/**
 * Checks bytes that a project is about to store against its storage_bytes quotas: the newest storage snapshot, zero
 * before the first, plus `deltaBytes`. It takes no lock and sums nothing live. A project without such a quota costs no
 * query, others one. A breach is reported outside the caller's transaction, which a refusal rolls back. Raises
 * QUOTA_STORAGE_EXCEEDED.
 * @param db the transaction of a caller that has one open: waiting for another connection while holding one would let
 *   a burst of writes wait for each other
 */
export async function checkStorage(
  services: Services,
  projectId: string,
  deltaBytes: number,
  db: Queryable = services.pool,
): Promise<void> {
  const known = onSeparateConnection(() => quotasOf(services, projectId))
  if (known instanceof Promise) {
    // Loaded for the next write, without waiting; this one reads the quotas themselves.
    known.catch(error => services.log.error({ err: error }, 'quotas not read'))
  } else if (!known.some(({ metric }) => metric === 'storage_bytes')) return
  for (const { bytes, day, ...quota } of await storageQuotas(db, projectId)) {
    const observed = (bytes ?? 0) + deltaBytes
    const breached = observed > quota.limit
    const window = windowOf(quota.window, day === null ? services.clock.now() : new Date(day))
    reportLater(services, quota, window, { observed, breached })
    if (breached && quota.mode === 'enforce')
      raise('QUOTA_STORAGE_EXCEEDED', {
        meta: { quota_id: quota.id, metric: quota.metric, limit: quota.limit, current_bytes: observed },
      })
  }
}
