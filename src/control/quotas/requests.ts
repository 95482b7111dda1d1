import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { Batcher } from '#core/db/batcher.ts'
import type { Caller } from '#core/iam/caller.ts'
import { quotasOfProject } from './quota-cache.ts'
import { mostSpecificBreach, refuseExceeded } from './quota-refusal.ts'
import { reportMeasurement, reportReasons } from './report.ts'
import { type CachedQuota, type CountedQuota, incrementCounters } from './store.ts'
import { type Window, windowOf } from './windows.ts'

/** A counted request with its ordinal in the window of a quota. */
type CountedRequest = { quota: CountedQuota; window: Window; ordinal: number; reported: Promise<void> | null }

/**
 * Counts the requests of project keys against `requests` quotas. A project without such quotas costs no query. Counting
 * is micro-batched: requests that arrive during a batch are summed into the next one, with one statement for all quotas
 * of the process. Each request gets an ordinal from the range of its batch, which keeps a limit exact across processes.
 */
export function openRequestQuotas(services: Services) {
  const { pool, clock, log } = services
  const reports = new Map<string, Promise<void>>()
  const counts = new Batcher<CachedQuota[], CountedRequest[]>(countBatch)

  async function countBatch(requests: CachedQuota[][]): Promise<CountedRequest[][]> {
    const now = clock.now()
    const sums = new Map<string, { window: Window; count: number }>()
    for (const quotas of requests) {
      for (const { id, window } of quotas) {
        const sum = sums.get(id)
        if (sum) sum.count++
        else sums.set(id, { window: windowOf(window, now), count: 1 })
      }
    }
    const rows = await incrementCounters(
      pool,
      [...sums].map(([quota_id, { window, count }]) => ({
        quota_id,
        window_key: window.key,
        window_start: window.start,
        count,
      })),
    )
    const ranges = new Map(
      rows.map(quota => {
        const { window, count } = sums.get(quota.id) as { window: Window; count: number }
        const first = quota.count - count + 1
        return [quota.id, { quota, window, next: first, reported: reportRange(quota, window, first) }]
      }),
    )
    return requests.map(quotas =>
      quotas.flatMap(({ id }) => {
        const range = ranges.get(id)
        // The quota was deleted meanwhile.
        if (!range) return []
        return [{ quota: range.quota, window: range.window, ordinal: range.next++, reported: range.reported }]
      }),
    )
  }

  /** Reports the marks reached by the ordinals from `first` to the quota's count; null if there are none. */
  function reportRange(quota: CountedQuota, window: Window, first: number): Promise<void> | null {
    const reasons = reportReasons(quota, window, quota.count, quota.count > quota.limit)
    if (!reasons) return null
    const key = `${quota.id} ${window.key} ${JSON.stringify(reasons)}`
    const running = reports.get(key)
    if (running) return running
    const values = {
      exceeded: Math.max(first, quota.limit + 1),
      warned: (fraction: number) => Math.max(first, Math.ceil(fraction * quota.limit)),
    }
    const started = reportMeasurement(services, quota, window, values, reasons)
      .catch(error => log.error({ err: error, quota_id: quota.id }, 'quota report failed'))
      .finally(() => reports.delete(key))
    reports.set(key, started)
    return started
  }

  return {
    async count(caller: Caller, projectId: string): Promise<void> {
      const cached = quotasOfProject(services, projectId)
      const quotas = (cached instanceof Promise ? await cached : cached).filter(
        ({ metric, scope_ref }) => metric === 'requests' && (scope_ref === null || scope_ref === caller.credential.id),
      )
      if (quotas.length === 0) return
      const breaches = (await counts.add(quotas)).filter(({ quota, ordinal }) => ordinal > quota.limit)
      if (breaches.length === 0) return
      await Promise.all(breaches.map(({ reported }) => reported))
      const refusal = mostSpecificBreach(breaches.filter(({ quota }) => quota.mode === 'enforce'))
      if (refusal) refuseExceeded(refusal, clock.now())
    },
    async close(): Promise<void> {
      await counts.close()
      await Promise.all(reports.values())
    },
  }
}

const requestQuotas = processSingleton(openRequestQuotas, quotas => quotas.close())

/**
 * Counts a request of a project key.
 * @throws QUOTA_EXCEEDED
 */
export const countQuotaRequest = (services: Services, caller: Caller, projectId: string): Promise<void> =>
  requestQuotas(services).count(caller, projectId)
