import { LRUCache } from 'lru-cache'
import { raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import type { Queryable } from '#core/db/sql.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import { fileExceptionLater } from '../exceptions/file-exception.ts'
import { isFullyUnpriced, listUnpricedRows, type UnpricedRow } from '../usage/sums.ts'
import { isSpendMetric } from './model.ts'
import { quotasOfProject } from './quota-cache.ts'
import { mostSpecificBreach, refuseExceeded } from './quota-refusal.ts'
import { reportLater } from './report.ts'
import { type MeasuredSpend, measureSpend, type SpendScope, serializeStarts } from './spend-store.ts'
import type { CachedQuota } from './store.ts'
import { type Window, windowOf } from './windows.ts'

export type { SpendScope } from './spend-store.ts'

/** A measured quota and whether it is breached. */
type QuotaVerdict = { quota: MeasuredSpend; window: Window; breached: boolean }

/** Metered calls other than model calls. */
type Metered = 'embedding' | 'tool_execution'

/**
 * Checks tokens and cost_usd quotas before work starts: turns, completions, memory extraction, embeddings and direct
 * tool calls. Costs no query if no quota of the project counts the work, otherwise one statement. If a quota reserves,
 * a transaction also takes a lock that serializes starts in the project until it ends. A breach is reported outside of
 * the caller's transaction, which a refusal rolls back.
 * @param options `again`: the work was admitted before and already holds its reservation; `metered`: not a model call,
 *   so nothing is reserved and model prices do not matter
 * @throws QUOTA_EXCEEDED; QUOTA_UNENFORCEABLE for model calls; PROJECT_PAUSED instead of both
 */
export async function checkSpend(
  services: Services,
  scope: SpendScope,
  db: Queryable = services.pool,
  options: { again?: boolean; metered?: Metered } = {},
): Promise<void> {
  const { metered } = options
  const inTransaction = db !== services.pool
  const cached = await cachedQuotas(services, scope, inTransaction)
  if (cached?.every(quota => !countsCall(quota, metered))) return
  const reserves = inTransaction && !options.again && !metered
  const lock = reserves && cached?.some(({ reserve }) => reserve)
  if (lock) await serializeStarts(db, scope.project_id)
  const now = services.clock.now()
  let measured = await measureSpend(db, scope, now)
  if (reserves && !lock && measured.some(({ reserve }) => reserve)) {
    // The quotas were not cached.
    await serializeStarts(db, scope.project_id)
    measured = await measureSpend(db, scope, now)
  }
  const verdicts = measured
    .filter(quota => countsCall(quota, metered))
    .map(quota => evaluateQuota(services, quota, now, options))
  for (const { quota, window } of verdicts)
    if (quota.unpriced > 0 && coversModels(quota)) fileUnpriced(services, quota, window, scope)
  const enforced = verdicts.filter(({ quota }) => quota.mode === 'enforce')
  const exceeded = mostSpecificBreach(enforced.filter(({ breached }) => breached))
  const blackout = metered ? null : mostSpecificBreach(enforced.filter(({ quota }) => isUnmeasurable(quota)))
  if (!exceeded && !blackout) return
  if (!options.again && !metered) await requireUnpaused(db, scope.project_id)
  if (exceeded) refuseExceeded(exceeded, now)
  if (blackout) await refuseUnmeasurable(db, blackout, scope)
}

/** Whether turns must start in a transaction that reserves their expected usage. */
export async function requiresReservation(services: Services, scope: SpendScope): Promise<boolean> {
  return (await cachedQuotas(services, scope, false))?.some(({ reserve }) => reserve) ?? false
}

/**
 * Returns the cached quotas that count the scope. Returns null in a transaction if they are not cached: it must not
 * wait for another connection, so they are loaded for the next call.
 */
async function cachedQuotas(
  services: Services,
  scope: SpendScope,
  inTransaction: boolean,
): Promise<CachedQuota[] | null> {
  const cached = onSeparateConnection(() => quotasOfProject(services, scope.project_id))
  if (cached instanceof Promise && inTransaction) {
    cached.catch(error => services.log.error({ err: error }, 'quota cache load failed'))
    return null
  }
  return (await cached).filter(quota => isSpendMetric(quota.metric) && countsScope(quota, scope))
}

function countsScope({ scope, scope_ref }: CachedQuota, { agent_id, actor_id }: SpendScope): boolean {
  if (scope === 'project') return true
  const id = scope === 'agent' ? agent_id : actor_id
  return id !== null && (scope_ref === null || scope_ref === id)
}

/** Whether a quota counts a call. Every tokens or cost_usd quota counts model calls. */
const countsCall = (
  { metric, meter_type }: Pick<MeasuredSpend, 'metric'> & Partial<MeasuredSpend>,
  metered?: Metered,
): boolean =>
  metered === undefined ||
  (metered === 'embedding'
    ? meter_type == null || meter_type === 'llm_tokens'
    : metric === 'cost_usd' && meter_type == null)

/** Compares a quota with its limit and starts its reports. */
function evaluateQuota(
  services: Services,
  quota: MeasuredSpend,
  now: Date,
  { again, metered }: { again?: boolean; metered?: Metered },
): QuotaVerdict {
  const window = windowOf(quota.window, now)
  const used = quota.metric === 'tokens' ? quota.tokens : quota.cost_usd
  const isReserving = quota.reserve && !again && !metered
  // Active turns and the starting one. Without a mean, the first turns run one at a time.
  const expected = isReserving ? used + (quota.under_way + 1) * (quota.mean ?? 0) : used
  const unknown = isReserving && quota.mean === null && quota.under_way > 0
  const breached = used >= quota.limit || expected > quota.limit || unknown
  reportLater(services, quota, window, { observed: expected, used, breached: breached && !unknown })
  return { quota, window, breached }
}

/** Whether a quota limits the cost of model calls. */
const coversModels = ({ metric, meter_type }: MeasuredSpend): boolean =>
  metric === 'cost_usd' && (meter_type === null || meter_type === 'llm_tokens')

const isUnmeasurable = (quota: MeasuredSpend): boolean =>
  coversModels(quota) && quota.on_unpriced === 'block' && isFullyUnpriced(quota)

const listUnpriced = (
  db: Queryable,
  quota: MeasuredSpend,
  { start }: Window,
  scope: SpendScope,
): Promise<readonly UnpricedRow[]> =>
  listUnpricedRows(db, {
    project_id: quota.project_id,
    agent_id: quota.scope === 'agent' ? quota.scope_ref : null,
    actor_id: quota.scope === 'actor' ? scope.actor_id : null,
    since: start,
  })

async function refuseUnmeasurable(db: Queryable, { quota, window }: QuotaVerdict, scope: SpendScope): Promise<never> {
  const { id: quota_id, metric, limit } = quota
  const unpriced_rows = await listUnpriced(db, quota, window, scope)
  return raise('QUOTA_UNENFORCEABLE', { meta: { quota_id, metric, limit, window: quota.window, unpriced_rows } })
}

/** Shortest interval between two filings for the same quota in a process. */
const FILING_INTERVAL_MS = 1000

const recentFilings = processSingleton(() => new LRUCache<string, true>({ max: 1000, ttl: FILING_INTERVAL_MS }))

/** Starts filing an exception for unpriced usage in a window. */
function fileUnpriced(services: Services, quota: MeasuredSpend, window: Window, scope: SpendScope): void {
  const recent = recentFilings(services)
  if (recent.has(quota.id)) return
  recent.set(quota.id, true)
  const { project_id, metric, scope_ref, meter_type, limit, metered, unpriced } = quota
  onSeparateConnection(async () => {
    const unpriced_rows = await listUnpriced(services.pool, quota, window, scope)
    fileExceptionLater(services, {
      project_id,
      kind: 'quota_unpriced',
      title: 'Cost quota counts model calls without a price',
      detail: {
        quota_id: quota.id,
        metric,
        scope: quota.scope,
        scope_ref,
        meter_type,
        window: quota.window,
        window_key: window.key,
        limit,
        metered_events: metered,
        unpriced_events: unpriced,
        unpriced_rows,
      },
      dedup_key: quota.id,
    })
  }).catch(error => services.log.error({ err: error, quota_id: quota.id }, 'unpriced usage filing failed'))
}
