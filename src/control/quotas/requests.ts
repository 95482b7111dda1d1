import { raise } from '../../core/api/errors.ts'
import { Batcher } from '../../core/db/batcher.ts'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import type { Scope } from './model.ts'
import { reasonsFor, report } from './report.ts'
import { addCounts, type Count, type MatchableQuota, requestQuotas as quotasOf } from './store.ts'
import { retryAfter, type Window, windowOf } from './windows.ts'

/** Carries the id of a project whose requests or storage_bytes quotas were added or removed. */
export const quotaChannel = 'muster_quotas'

const MAX_AGE_MS = 5000

/** One counted request: its ordinal in the window of every quota that counts it. */
type Counted = { quota: Count; window: Window; ordinal: number; reported: Promise<void> | null }

/**
 * Counts the requests of project keys against `requests` quotas. A project without such quotas costs no
 * query. Counting is micro-batched: what arrives while a batch is under way is summed into the next, one statement for
 * all quotas of the process; each request gets its own ordinal out of the range its batch was given, which keeps a
 * limit exact in any number of processes.
 */
export function openRequestQuotas(services: Services) {
  const { pool, clock, log, notifications } = services
  const matchable = new NotifiedCache<MatchableQuota[]>(notifications, {
    channel: quotaChannel,
    maxAgeMs: MAX_AGE_MS,
    load: async projectIds => {
      const rows = await quotasOf(pool, projectIds)
      return projectIds.map(id => rows.filter(row => row.project_id === id))
    },
  })
  const reports = new Map<string, Promise<void>>()
  const counts = new Batcher<MatchableQuota[], Counted[]>(countBatch)

  async function countBatch(requests: MatchableQuota[][]): Promise<Counted[][]> {
    const now = clock.now()
    const sums = new Map<string, { window: Window; count: number }>()
    for (const quotas of requests) {
      for (const { id, window } of quotas) {
        const sum = sums.get(id)
        if (sum) sum.count++
        else sums.set(id, { window: windowOf(window, now), count: 1 })
      }
    }
    const rows = await addCounts(
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
        // Deleted meanwhile: it limits nothing any more.
        if (!range) return []
        return [{ quota: range.quota, window: range.window, ordinal: range.next++, reported: range.reported }]
      }),
    )
  }

  /** Reports what a range of ordinals, from `first` to the quota's count, reached; null when there is nothing to say. */
  function reportRange(quota: Count, window: Window, first: number): Promise<void> | null {
    const reasons = reasonsFor(quota, window, quota.count, quota.count > quota.limit)
    if (!reasons) return null
    const name = `${quota.id} ${window.key} ${JSON.stringify(reasons)}`
    const running = reports.get(name)
    if (running) return running
    const values = {
      exceeded: Math.max(first, quota.limit + 1),
      warned: (fraction: number) => Math.max(first, Math.ceil(fraction * quota.limit)),
    }
    const started = report(services, quota, window, values, reasons)
      .catch(error => log.error({ err: error, quota_id: quota.id }, 'quota breach not reported'))
      .finally(() => reports.delete(name))
    reports.set(name, started)
    return started
  }

  return {
    async count(caller: Caller, projectId: string): Promise<void> {
      const known = matchable.get(projectId)
      const quotas = (known instanceof Promise ? await known : known).filter(
        ({ scope_ref }) => scope_ref === null || scope_ref === caller.credential.id,
      )
      if (quotas.length === 0) return
      const breaches = (await counts.add(quotas)).filter(({ quota, ordinal }) => ordinal > quota.limit)
      if (breaches.length === 0) return
      await Promise.all(breaches.map(({ reported }) => reported))
      const refusal = mostSpecific(breaches.filter(({ quota }) => quota.mode === 'enforce'))
      if (refusal) refuse(refusal, clock.now())
    },
    async close(): Promise<void> {
      matchable.close()
      await counts.idle()
      await Promise.all(reports.values())
    },
  }
}

const requestQuotas = perProcess(openRequestQuotas, quotas => quotas.close())

/** Counts a request of a project key. Raises QUOTA_EXCEEDED. */
export const countRequest = (services: Services, caller: Caller, projectId: string): Promise<void> =>
  requestQuotas(services).count(caller, projectId)

const specificity: readonly Scope[] = ['actor', 'agent', 'api_key', 'project']

/** The breach a refusal names: the most specific scope, then the lowest quota id. */
function mostSpecific(breaches: Counted[]): Counted | undefined {
  return breaches.sort(
    (a, b) =>
      specificity.indexOf(a.quota.scope) - specificity.indexOf(b.quota.scope) || (a.quota.id < b.quota.id ? -1 : 1),
  )[0]
}

function refuse({ quota, window }: Counted, now: Date): never {
  const resets_at = window.resets_at as string
  return raise('QUOTA_EXCEEDED', {
    meta: { quota_id: quota.id, metric: quota.metric, limit: quota.limit, window: quota.window, resets_at },
    headers: { 'Retry-After': String(retryAfter(resets_at, now)) },
  })
}
