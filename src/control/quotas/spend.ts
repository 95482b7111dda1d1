import { LRUCache } from 'lru-cache'
import { raise } from '../../core/api/errors.ts'
import { onSeparateConnection } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import { fileExceptionLater } from '../exceptions/file-exception.ts'
import { isFullyUnpriced, type UnpricedRow, unpricedRows } from '../usage/sums.ts'
import { isSpend } from './model.ts'
import { quotasOf } from './quota-cache.ts'
import { mostSpecific, refuseExceeded } from './quota-refusal.ts'
import { reportLater } from './report.ts'
import { measureSpend, type Spend, type SpendScope, serializeStarts } from './spend-store.ts'
import type { KnownQuota } from './store.ts'
import { type Window, windowOf } from './windows.ts'

export type { SpendScope } from './spend-store.ts'

/** A measured quota: what is compared with its limit, and how that came out. */
type Verdict = { quota: Spend; window: Window; breached: boolean }

/** What a call that is no model call counts in. */
type Metered = 'embedding' | 'tool_execution'

/**
 * Checks the tokens and cost_usd quotas that work would count in, before it starts: turns, completions, memory extraction,
 * embeddings and direct calls of tools. Nothing is asked of the database where none of the project's quotas counts the work, else one
 * statement; one more in a transaction where a quota reserves, which then holds up other starts of the project until its end.
 * A breach is reported outside of the caller's transaction, which a refusal rolls back.
 * @param options `again`: the work was let in before and is about to start, so what was reserved is its own; `metered`: a
 *   call that is no model call, for which nothing is reserved and whose price does not depend on those of models
 * @throws QUOTA_EXCEEDED; QUOTA_UNENFORCEABLE for model calls, and PROJECT_PAUSED in place of both
 */
export async function checkSpend(
  services: Services,
  spender: SpendScope,
  db: Queryable = services.pool,
  options: { again?: boolean; metered?: Metered } = {},
): Promise<void> {
  const { metered } = options
  const inTransaction = db !== services.pool
  const known = await knownTo(services, spender, inTransaction)
  if (known?.every(quota => !countsCall(quota, metered))) return
  const orders = inTransaction && !options.again && !metered
  const lock = orders && known?.some(({ reserve }) => reserve)
  if (lock) await serializeStarts(db, spender.project_id)
  const now = services.clock.now()
  let measured = await measureSpend(db, spender, now)
  if (orders && !lock && measured.some(({ reserve }) => reserve)) {
    // Nothing was known of the quotas yet.
    await serializeStarts(db, spender.project_id)
    measured = await measureSpend(db, spender, now)
  }
  const verdicts = measured
    .filter(quota => countsCall(quota, metered))
    .map(quota => judge(services, quota, now, options))
  for (const { quota, window } of verdicts)
    if (quota.unpriced > 0 && coversModels(quota)) fileUnpriced(services, quota, window, spender)
  const enforced = verdicts.filter(({ quota }) => quota.mode === 'enforce')
  const exceeded = mostSpecific(enforced.filter(({ breached }) => breached))
  const blackout = metered ? null : mostSpecific(enforced.filter(({ quota }) => isUnmeasurable(quota)))
  if (!exceeded && !blackout) return
  if (!options.again && !metered) await requireUnpaused(db, spender.project_id)
  if (exceeded) refuseExceeded(exceeded, now)
  if (blackout) await refuseUnmeasurable(db, blackout, spender)
}

/** Whether a turn of a project must be made in a transaction, in which what it will use is reserved. */
export async function requiresReservation(services: Services, spender: SpendScope): Promise<boolean> {
  return (await knownTo(services, spender, false))?.some(({ reserve }) => reserve) ?? false
}

/**
 * The quotas that count somebody's work. Null within a transaction when the process does not know them: it does not wait
 * there for another connection, and loads them for the next time.
 */
async function knownTo(services: Services, spender: SpendScope, inTransaction: boolean): Promise<KnownQuota[] | null> {
  const known = onSeparateConnection(() => quotasOf(services, spender.project_id))
  if (known instanceof Promise && inTransaction) {
    known.catch(error => services.log.error({ err: error }, 'quotas not read'))
    return null
  }
  return (await known).filter(quota => isSpend(quota.metric) && counts(quota, spender))
}

function counts({ scope, scope_ref }: KnownQuota, { agent_id, actor_id }: SpendScope): boolean {
  if (scope === 'project') return true
  const spends = scope === 'agent' ? agent_id : actor_id
  return spends !== null && (scope_ref === null || scope_ref === spends)
}

/** Whether a quota counts a call that is no model call; of model calls all do. */
const countsCall = ({ metric, meter_type }: Pick<Spend, 'metric'> & Partial<Spend>, metered?: Metered): boolean =>
  metered === undefined ||
  (metered === 'embedding'
    ? meter_type == null || meter_type === 'llm_tokens'
    : metric === 'cost_usd' && meter_type == null)

/** Compares a quota with its limit, and reports what it reaches. */
function judge(
  services: Services,
  quota: Spend,
  now: Date,
  { again, metered }: { again?: boolean; metered?: Metered },
): Verdict {
  const window = windowOf(quota.window, now)
  const used = quota.metric === 'tokens' ? quota.tokens : quota.cost_usd
  const reserves = quota.reserve && !again && !metered
  // What is under way and what is about to start; of the first turns nobody knows, so they follow each other.
  const expected = reserves ? used + (quota.under_way + 1) * (quota.mean ?? 0) : used
  const unknown = reserves && quota.mean === null && quota.under_way > 0
  const breached = used >= quota.limit || expected > quota.limit || unknown
  reportLater(services, quota, window, { observed: expected, used, breached: breached && !unknown })
  return { quota, window, breached }
}

/** Whether the cost that a quota caps is that of models, among others. */
const coversModels = ({ metric, meter_type }: Spend): boolean =>
  metric === 'cost_usd' && (meter_type === null || meter_type === 'llm_tokens')

const isUnmeasurable = (quota: Spend): boolean =>
  coversModels(quota) && quota.on_unpriced === 'block' && isFullyUnpriced(quota)

const unpricedOf = (
  db: Queryable,
  { scope, scope_ref, project_id }: Spend,
  { start }: Window,
  spender: SpendScope,
): Promise<readonly UnpricedRow[]> =>
  unpricedRows(db, {
    project_id,
    agent_id: scope === 'agent' ? scope_ref : null,
    actor_id: scope === 'actor' ? spender.actor_id : null,
    since: start,
  })

async function refuseUnmeasurable(db: Queryable, { quota, window }: Verdict, spender: SpendScope): Promise<never> {
  const { id: quota_id, metric, limit } = quota
  const unpriced_rows = await unpricedOf(db, quota, window, spender)
  return raise('QUOTA_UNENFORCEABLE', { meta: { quota_id, metric, limit, window: quota.window, unpriced_rows } })
}

/** A quota whose usage is unpriced says so at every check; that often it need not be looked up and filed. */
const FILED_EVERY_MS = 1000

const filed = processSingleton(() => new LRUCache<string, true>({ max: 1000, ttl: FILED_EVERY_MS }))

/** Files the exception that usage of a window has no price. Nobody waits for it. */
function fileUnpriced(services: Services, quota: Spend, window: Window, spender: SpendScope): void {
  const recent = filed(services)
  if (recent.has(quota.id)) return
  recent.set(quota.id, true)
  const { project_id, metric, scope, scope_ref, meter_type, limit, metered, unpriced } = quota
  onSeparateConnection(async () => {
    const unpriced_rows = await unpricedOf(services.pool, quota, window, spender)
    fileExceptionLater(services, {
      project_id,
      kind: 'quota_unpriced',
      title: 'A cost quota counts model calls that have no price',
      detail: {
        quota_id: quota.id,
        metric,
        scope,
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
  }).catch(error => services.log.error({ err: error, quota_id: quota.id }, 'unpriced usage not filed'))
}
