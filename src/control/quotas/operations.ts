import { equalsFilter, oneOf } from '#core/api/filters.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { newestSnapshot } from '../storage/store.ts'
import {
  isReservable,
  isSpendMetric,
  limitProblem,
  QUOTA_METRICS,
  QUOTA_MODES,
  QUOTA_SCOPES,
  QuotaInput,
  QuotaPatch,
  type QuotaRow,
  type QuotaScope,
  QuotaUsage,
  quotaKind,
  RESERVE_PROBLEM,
} from './model.ts'
import { invalidateQuotas } from './quota-cache.ts'
import { listTopActors, measureUsage } from './spend-store.ts'
import { deleteCountersOf, readCounter } from './store.ts'
import { windowOf } from './windows.ts'

const kindOfScope: Record<Exclude<QuotaScope, 'project'>, string> = {
  api_key: 'project_key',
  agent: 'agent',
  actor: 'actor',
}

/** Requires the API key, agent or actor of a quota to belong to its project. */
async function checkScopeRef(
  db: Queryable,
  projectId: string,
  { scope, scope_ref }: { scope: QuotaScope; scope_ref?: string | null },
): Promise<void> {
  if (!scope_ref || scope === 'project') return
  const kind = kinds.get(kindOfScope[scope])
  const row = isIdOf(kind, scope_ref) ? await kind.find(db, scope_ref) : null
  if (row?.project_id !== projectId)
    raiseInvalid({ code: 'NOT_FOUND', path: 'scope_ref', message: 'does not exist in this project' })
}

/** Adds the counter of the current window to a requests quota. */
async function withUsage(db: Queryable, row: QuotaRow, now: Date): Promise<QuotaRow> {
  const { key, resets_at } = windowOf(row.window, now)
  if (row.metric !== 'requests' || resets_at === null) return row
  return { ...row, current_usage: { window_key: key, count: await readCounter(db, row.id, key), resets_at } }
}

/** Measures the usage of a quota in its current window. */
async function observeQuota(db: Queryable, quota: QuotaRow, now: Date) {
  if (isSpendMetric(quota.metric)) {
    const window = windowOf(quota.window, now)
    if (quota.scope !== 'actor' || quota.scope_ref !== null)
      return { window, value: await measureUsage(db, quota, now) }
    const actors = await listTopActors(db, quota, now)
    return { window, value: actors[0]?.used ?? 0, actors }
  }
  const snapshot = quota.metric === 'storage_bytes' ? await newestSnapshot(db, quota.project_id) : null
  const window = windowOf(quota.window, snapshot ? new Date(snapshot.day) : now)
  return {
    window,
    value: quota.metric === 'requests' ? await readCounter(db, quota.id, window.key) : (snapshot?.bytes ?? null),
  }
}

const quotas = resource(quotaKind, {
  path: '/quotas',
  tag: 'Quotas',
  complete: (row, { db, services }) => withUsage(db, row, services.clock.now()),
})

export const quotaOperations: Operation[] = [
  quotas.create({
    summary: 'Create a quota',
    description:
      'In mode `enforce`, requests over the limit are refused with QUOTA_EXCEEDED; in mode `monitor`, breaches are only reported. A requests quota counts from its creation.',
    body: QuotaInput,
    raises: ['QUOTA_CONFLICT'],
    check: ({ body, project, tx }) => checkScopeRef(tx, project, body),
    async make({ body, project, tx }) {
      const on_unpriced = body.metric === 'cost_usd' ? (body.on_unpriced ?? 'block') : null
      const row = await quotaKind.insert(tx, { ...body, project_id: project, on_unpriced })
      invalidateQuotas(tx, row.project_id)
      return row
    },
  }),
  // Index quotas_project, or the primary key's order over all projects.
  quotas.list({
    filters: {
      scope: oneOf('scope', QUOTA_SCOPES),
      scope_ref: equalsFilter('scope_ref'),
      metric: oneOf('metric', QUOTA_METRICS),
      mode: oneOf('mode', QUOTA_MODES),
    },
  }),
  quotas.get(),
  itemOperation(quotaKind, {
    id: 'getQuotaUsage',
    method: 'get',
    path: '/quotas/{quota_id}/usage',
    summary: 'Get quota usage',
    description: 'Returns how much of the quota is used in the current window, by the figures that enforcement uses.',
    tag: 'Quotas',
    action: 'quotas:GetQuota',
    answers: { 200: QuotaUsage },
    async run({ db, resource: quota, services }) {
      const { window, value, actors } = await observeQuota(db, quota, services.clock.now())
      const remainingOf = (used: number) => Math.max(0, quota.limit - used)
      return {
        window_key: window.key,
        observed_value: value,
        limit: quota.limit,
        remaining: value === null ? null : remainingOf(value),
        resets_at: window.resets_at,
        actors:
          actors?.map(({ actor_id, used }) => ({ actor_id, observed_value: used, remaining: remainingOf(used) })) ??
          null,
      }
    },
  }),
  quotas.update({
    summary: 'Update a quota',
    description: 'Breaches and warnings already reported in the current window are not reported again.',
    body: QuotaPatch,
    change(next) {
      const { limit, metric, on_unpriced, reserve } = next
      const problem = limitProblem(metric, limit)
      if (problem) raiseInvalid({ code: 'INVALID_VALUE', path: 'limit', message: problem })
      if (reserve && !isReservable(next))
        raiseInvalid({ code: 'INVALID_VALUE', path: 'reserve', message: RESERVE_PROBLEM })
      if (metric === 'cost_usd') return { ...next, on_unpriced: on_unpriced ?? 'block' }
      if (on_unpriced)
        raiseInvalid({ code: 'INVALID_VALUE', path: 'on_unpriced', message: 'is allowed only for cost_usd' })
    },
    changed: (row, { tx }) => invalidateQuotas(tx, row.project_id),
  }),
  quotas.remove({
    summary: 'Delete a quota',
    description: 'Deletes its counters too. The limit no longer applies from the next request on.',
    async removed(row, { tx }) {
      await deleteCountersOf(tx, row.id)
      invalidateQuotas(tx, row.project_id)
    },
  }),
]
