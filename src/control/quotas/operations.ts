import { raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, oneOf } from '../../core/api/filters.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { newestSnapshot } from '../storage/store.ts'
import {
  isReservable,
  isSpend,
  limitProblem,
  METRICS,
  MODES,
  QUOTA_SCOPES,
  QuotaInput,
  QuotaPatch,
  type QuotaRow,
  type QuotaScope,
  QuotaUsage,
  quotaKind,
  RESERVABLE,
} from './model.ts'
import { invalidateQuotas } from './quota-cache.ts'
import { fullestIn, measureUsage } from './spend-store.ts'
import { deleteCountersOf, readCounter } from './store.ts'
import { windowOf } from './windows.ts'

const kindOfScope: Record<Exclude<QuotaScope, 'project'>, string> = {
  api_key: 'project_key',
  agent: 'agent',
  actor: 'actor',
}

/** The key, agent or actor that a quota names must be of its project; a key without a project is of none. */
async function checkScopeRef(
  db: Queryable,
  projectId: string,
  { scope, scope_ref }: { scope: QuotaScope; scope_ref?: string | null },
): Promise<void> {
  if (!scope_ref || scope === 'project') return
  const kind = kinds.get(kindOfScope[scope])
  const row = isIdOf(kind, scope_ref) ? await kind.find(db, scope_ref) : null
  if (row?.project_id !== projectId)
    raiseInvalid({ code: 'NOT_FOUND', path: 'scope_ref', message: `names no ${scope} of the project` })
}

/** What a requests quota has counted in the running window; nothing for the other metrics. */
async function withUsage(db: Queryable, row: QuotaRow, now: Date): Promise<QuotaRow> {
  const { key, resets_at } = windowOf(row.window, now)
  if (row.metric !== 'requests' || resets_at === null) return row
  return { ...row, current_usage: { window_key: key, count: await readCounter(db, row.id, key), resets_at } }
}

/** What a quota has used in its running window, as far as it was measured. */
async function observed(db: Queryable, quota: QuotaRow, now: Date) {
  if (isSpend(quota.metric)) {
    const window = windowOf(quota.window, now)
    if (quota.scope !== 'actor' || quota.scope_ref !== null)
      return { window, value: await measureUsage(db, quota, now) }
    const actors = await fullestIn(db, quota, now)
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
    summary: 'Cap what a project, key, agent or end user may use',
    description:
      'Counts from its creation on. In mode `enforce` what goes beyond the limit is refused with QUOTA_EXCEEDED; in mode `monitor` it is reported only.',
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
      metric: oneOf('metric', METRICS),
      mode: oneOf('mode', MODES),
    },
  }),
  quotas.get(),
  itemOperation(quotaKind, {
    id: 'getQuotaUsage',
    method: 'get',
    path: '/quotas/{quota_id}/usage',
    summary: 'Measure what a quota has used in its running window',
    description: 'Measured now, from the same figures that the quota is enforced by.',
    tag: 'Quotas',
    action: 'quotas:GetQuota',
    answers: { 200: QuotaUsage },
    async run({ db, resource: quota, services }) {
      const { window, value, actors } = await observed(db, quota, services.clock.now())
      const left = (used: number) => Math.max(0, quota.limit - used)
      return {
        window_key: window.key,
        observed_value: value,
        limit: quota.limit,
        remaining: value === null ? null : left(value),
        resets_at: window.resets_at,
        actors:
          actors?.map(({ actor_id, used }) => ({ actor_id, observed_value: used, remaining: left(used) })) ?? null,
      }
    },
  }),
  quotas.update({
    summary: 'Change the limit, mode, pricing rule, warnings or reserving of a quota',
    description: 'What was reported in the running window is not reported again.',
    body: QuotaPatch,
    change(next) {
      const { limit, metric, on_unpriced, reserve } = next
      const problem = limitProblem(metric, limit)
      if (problem) raiseInvalid({ code: 'INVALID_VALUE', path: 'limit', message: problem })
      if (reserve && !isReservable(next)) raiseInvalid({ code: 'INVALID_VALUE', path: 'reserve', message: RESERVABLE })
      if (metric === 'cost_usd') return { ...next, on_unpriced: on_unpriced ?? 'block' }
      if (on_unpriced) raiseInvalid({ code: 'INVALID_VALUE', path: 'on_unpriced', message: 'belongs to cost_usd only' })
    },
    changed: (row, { tx }) => invalidateQuotas(tx, row.project_id),
  }),
  quotas.remove({
    summary: 'Delete a quota and its counters',
    description: 'What it capped is free at the next request.',
    async removed(row, { tx }) {
      await deleteCountersOf(tx, row.id)
      invalidateQuotas(tx, row.project_id)
    },
  }),
]
