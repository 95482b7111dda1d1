import { z } from 'zod'
import { invalid, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import { anyOf, listTable, pageOf, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { announce } from '../../core/db/notified-cache.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { newestSnapshot } from '../storage/store.ts'
import {
  limitProblem,
  METRICS,
  MODES,
  presentQuota,
  Quota,
  QuotaInput,
  QuotaPatch,
  type QuotaRow,
  QuotaUsage,
  quota,
  SCOPES,
  type Scope,
  type Usage,
} from './model.ts'
import { quotaChannel } from './requests.ts'
import { countIn, deleteQuota, insertQuota, updateQuota } from './store.ts'
import { windowOf } from './windows.ts'

const tag = 'Quotas'

const kindOfScope: Record<Scope, string | null> = {
  project: null,
  api_key: 'project_key',
  agent: 'agent',
  actor: 'actor',
}

/** The key, agent or actor a quota names must be of its project; an unscoped key is of none. */
async function checkScopeRef(db: Queryable, projectId: string, scope: Scope, ref: string): Promise<void> {
  const kind = kinds.get(kindOfScope[scope] as string)
  const row = isIdOf(kind, ref) ? await kind.find(db, ref) : null
  if (row?.project_id !== projectId)
    invalid({ code: 'NOT_FOUND', path: 'scope_ref', message: `names no ${scope} of the project` })
}

/** What a requests quota has counted in the running window; null for the other metrics. */
async function usageOf(db: Queryable, row: QuotaRow, now: Date): Promise<Usage | null> {
  const { key, resets_at } = windowOf(row.window, now)
  if (row.metric !== 'requests' || resets_at === null) return null
  return { window_key: key, count: await countIn(db, row.id, key), resets_at }
}

/** Every process must know which quotas a project has before it counts the next request or takes the next bytes. */
function announceQuota(tx: Tx, row: QuotaRow): void {
  if (row.metric === 'requests' || row.metric === 'storage_bytes') announce(tx, quotaChannel, row.project_id)
}

const createQuota = operation({
  id: 'createQuota',
  method: 'post',
  path: '/quotas',
  summary: 'Cap what a project, key, agent or end user may use',
  tag,
  action: 'quotas:CreateQuota',
  creates: quota,
  body: QuotaInput,
  answers: { 201: Quota },
  raises: ['QUOTA_CONFLICT'],
  async run({ tx, body, project, services }) {
    const projectId = project as string
    if (body.scope_ref) await checkScopeRef(tx, projectId, body.scope, body.scope_ref)
    const on_unpriced = body.metric === 'cost_usd' ? (body.on_unpriced ?? 'block') : null
    const row = await insertQuota(tx, newId('quota'), projectId, { ...body, on_unpriced })
    if (!row) return raise('QUOTA_CONFLICT')
    announceQuota(tx, row)
    const record = presentQuota(row, await usageOf(tx, row, services.clock.now()))
    tx.emit(quota, 'created', { id: (record as { id: string }).id, project_id: projectId }, { data: record })
    return record
  },
})

const listQuotas = operation({
  id: 'listQuotas',
  method: 'get',
  path: '/quotas',
  summary: 'List quotas',
  tag,
  action: 'quotas:ListQuotas',
  lists: quota,
  query: z.object({
    scope: anyOf(SCOPES),
    scope_ref: textFilter,
    metric: anyOf(METRICS),
    mode: anyOf(MODES),
  }),
  answers: { 200: pageOf(Quota) },
  // Index quotas_project, or the primary key's order over all projects.
  run: context =>
    listTable<QuotaRow>(context, {
      table: 'quotas',
      where: [
        context.query.scope && sql.fragment`t.scope = any(${sql.array(context.query.scope, 'text')})`,
        context.query.scope_ref !== undefined && sql.fragment`t.scope_ref = ${context.query.scope_ref}`,
        context.query.metric && sql.fragment`t.metric = any(${sql.array(context.query.metric, 'text')})`,
        context.query.mode && sql.fragment`t.mode = any(${sql.array(context.query.mode, 'text')})`,
      ],
      present: row => presentQuota(row),
    }),
})

const getQuota = itemOperation(quota, {
  id: 'getQuota',
  method: 'get',
  path: '/quotas/{quota_id}',
  summary: 'Read a quota',
  tag,
  action: 'quotas:GetQuota',
  answers: { 200: Quota },
  run: async ({ db, resource, services }) => presentQuota(resource, await usageOf(db, resource, services.clock.now())),
})

const getQuotaUsage = itemOperation(quota, {
  id: 'getQuotaUsage',
  method: 'get',
  path: '/quotas/{quota_id}/usage',
  summary: 'Measure what a quota has used in its running window',
  tag,
  action: 'quotas:GetQuota',
  answers: { 200: QuotaUsage },
  async run({ db, resource, services }) {
    const now = services.clock.now()
    const snapshot = resource.metric === 'storage_bytes' ? await newestSnapshot(db, resource.project_id) : null
    const { key, resets_at } = windowOf(resource.window, snapshot ? new Date(snapshot.day) : now)
    const observed = resource.metric === 'requests' ? await countIn(db, resource.id, key) : (snapshot?.bytes ?? null)
    return {
      window_key: key,
      observed_value: observed,
      limit: resource.limit,
      remaining: observed === null ? null : Math.max(0, resource.limit - observed),
      resets_at,
    }
  },
})

const patchQuota = itemOperation(quota, {
  id: 'updateQuota',
  method: 'patch',
  path: '/quotas/{quota_id}',
  summary: 'Change the limit, mode, pricing rule or warnings of a quota',
  description: 'What was reported in the running window is not reported again.',
  tag,
  action: 'quotas:UpdateQuota',
  body: QuotaPatch,
  answers: { 200: Quota },
  async run({ tx, body, resource, services }) {
    const problem = body.limit === undefined ? null : limitProblem(resource.metric, body.limit)
    if (problem) invalid({ code: 'INVALID_VALUE', path: 'limit', message: problem })
    const patch = { ...body }
    if (resource.metric !== 'cost_usd') {
      if (patch.on_unpriced)
        invalid({ code: 'INVALID_VALUE', path: 'on_unpriced', message: 'belongs to cost_usd only' })
    } else if (patch.on_unpriced === null) patch.on_unpriced = 'block'
    const row = await updateQuota(tx, resource.id, patch)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    const record = presentQuota(row, await usageOf(tx, row, services.clock.now()))
    tx.emit(quota, 'updated', { id: (record as { id: string }).id, project_id: row.project_id }, { data: record })
    return record
  },
})

const removeQuota = itemOperation(quota, {
  id: 'deleteQuota',
  method: 'delete',
  path: '/quotas/{quota_id}',
  summary: 'Delete a quota and its counters',
  tag,
  action: 'quotas:DeleteQuota',
  answers: { 204: null },
  async run({ tx, resource, services }) {
    const usage = await usageOf(tx, resource, services.clock.now())
    if (!(await deleteQuota(tx, resource.id))) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    announceQuota(tx, resource)
    tx.emit(quota, 'deleted', { ...resource, current_usage: usage })
  },
})

export const quotaOperations: Operation[] = [createQuota, listQuotas, getQuota, getQuotaUsage, patchQuota, removeQuota]
