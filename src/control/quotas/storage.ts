import { raise } from '../../core/api/errors.ts'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { outsideTransaction } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { reasonsFor, report } from './report.ts'
import { quotaChannel } from './requests.ts'
import { projectsWithStorageQuota, storageQuotas } from './store.ts'
import { windowOf } from './windows.ts'

const MAX_AGE_MS = 5000

/** Which projects have a storage_bytes quota at all, and the reports under way by what they report. */
const storageChecks = perProcess(
  ({ notifications, pool }: Services) => ({
    limited: new NotifiedCache<{ limited: boolean }>(notifications, {
      channel: quotaChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async projectIds => {
        const found = new Set(await projectsWithStorageQuota(pool, projectIds))
        return projectIds.map(id => ({ limited: found.has(id) }))
      },
    }),
    reports: new Set<string>(),
  }),
  ({ limited }) => limited.close(),
)

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
  const { limited } = storageChecks(services)
  const known = outsideTransaction(() => limited.get(projectId))
  if (known instanceof Promise) {
    // Loaded for the next write, without waiting; this one reads the quotas themselves.
    known.catch(error => services.log.error({ err: error }, 'storage quotas not read'))
  } else if (!known.limited) return
  for (const { bytes, day, ...quota } of await storageQuotas(db, projectId)) {
    const observed = (bytes ?? 0) + deltaBytes
    const breached = observed > quota.limit
    reportReached(services, quota, day, observed, breached)
    if (breached && quota.mode === 'enforce')
      raise('QUOTA_STORAGE_EXCEEDED', {
        meta: { quota_id: quota.id, metric: quota.metric, limit: quota.limit, current_bytes: observed },
      })
  }
}

/**
 * Starts the report of what a measured value reaches, which nobody waits for. One that is lost with its process is made
 * at the next check.
 */
function reportReached(
  services: Services,
  quota: Parameters<typeof report>[1],
  day: string | null,
  observed: number,
  breached: boolean,
): void {
  const { reports } = storageChecks(services)
  const window = windowOf(quota.window, day === null ? services.clock.now() : new Date(day))
  const reasons = reasonsFor(quota, window, observed, breached)
  if (!reasons) return
  const name = `${quota.id} ${window.key} ${JSON.stringify(reasons)}`
  if (reports.has(name)) return
  reports.add(name)
  outsideTransaction(() => report(services, quota, window, { exceeded: observed, warned: () => observed }, reasons))
    .catch(error => services.log.error({ err: error, quota_id: quota.id }, 'quota breach not reported'))
    .finally(() => reports.delete(name))
}
