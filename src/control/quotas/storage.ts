import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import type { Queryable } from '#core/db/sql.ts'
import { quotasOfProject } from './quota-cache.ts'
import { reportLater } from './report.ts'
import { listStorageQuotas } from './store.ts'
import { windowOf } from './windows.ts'

/**
 * Checks the newest storage snapshot (zero without one) plus `deltaBytes` against the storage_bytes quotas of a
 * project. Takes no lock and sums nothing live. Costs one query, or none without such a quota. A breach is reported
 * outside the caller's transaction, which a refusal rolls back.
 * @param db the caller's open transaction: waiting for a second connection could deadlock a burst of writes
 * @throws QUOTA_STORAGE_EXCEEDED
 */
export async function checkStorage(
  services: Services,
  projectId: string,
  deltaBytes: number,
  db: Queryable = services.pool,
): Promise<void> {
  const cached = onSeparateConnection(() => quotasOfProject(services, projectId))
  if (cached instanceof Promise) {
    // Loaded for the next write without waiting; this write reads the quotas from the database.
    cached.catch(error => services.log.error({ err: error }, 'quota cache load failed'))
  } else if (!cached.some(({ metric }) => metric === 'storage_bytes')) return
  for (const { bytes, day, ...quota } of await listStorageQuotas(db, projectId)) {
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
