import type { JsonObject } from '#core/api/flatten.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { canReadResources } from '../plans/calls.ts'
import { isSameValue, listLiveResources } from '../plans/live.ts'
import { lastShown } from '../plans/step.ts'
import type { Drift, FormationRow, ResourceDrift } from '../records/model.ts'
import { listTrackedResources, type TrackedRow } from '../records/store.ts'
import type { ResourceDeclaration } from '../template/shape.ts'
import { findType } from '../types/find.ts'
import type { Live, TemplateType } from '../types/model.ts'

/** Differences between the resources of a formation and their last deployed state. */

type ComparedResource = ResourceDrift & { type: TemplateType | undefined; live: Live | null; args: JsonObject }

async function compareResources(
  services: Services,
  db: Queryable,
  { id, project_id, template }: FormationRow,
): Promise<ComparedResource[]> {
  const tracked = (await listTrackedResources(db, id)).filter(row => row.physical_resource_id !== null)
  const live = await listLiveResources(services, db, tracked, project_id)
  const declared = template.resources as Record<string, ResourceDeclaration>
  return tracked.map(row => {
    const type = findType(services, row.resource_type)
    const current = live.get(row.physical_resource_id as string) ?? null
    const { logical_id, resource_type, applied: args } = row
    const resource = { logical_id, resource_type, type, live: current, args }
    if (!type || (type.registered && !type.registered.capabilities.includes('read')))
      return { ...resource, status: 'not_supported' }
    if (!current) return { ...resource, status: 'missing' }
    const diff = diffOf(row, type, current, declared[logical_id]?.ignore_fields ?? [])
    return diff ? { ...resource, status: 'drifted', diff } : { ...resource, status: 'in_sync' }
  })
}

/** Returns the applied properties whose current values differ; null if none does. */
function diffOf(
  row: TrackedRow,
  { writeOnly }: TemplateType,
  { values }: Live,
  ignored: readonly string[],
): ResourceDrift['diff'] | null {
  const names = Object.keys(row.applied).filter(
    name =>
      name in values &&
      !writeOnly.includes(name) &&
      !ignored.includes(name) &&
      !isSameValue(values[name], lastShown(row, name)),
  )
  const pick = (from: JsonObject): JsonObject => Object.fromEntries(names.map(name => [name, from[name]]))
  return names.length === 0 ? null : { desired: pick(row.applied), current: pick(values) }
}

const hasDrifted = ({ status }: ResourceDrift): boolean => status === 'drifted' || status === 'missing'

/** Returns the drift of a formation, without values of resources that the caller may not read. */
export async function getDrift(services: Services, caller: Caller, formation: FormationRow): Promise<Drift> {
  const { pool } = services
  const compared = await compareResources(services, pool, formation)
  const drifted = compared.flatMap(({ type, ...each }) => (type && each.diff ? [{ ...each, type }] : []))
  const reads = await canReadResources(pool, caller, drifted, formation.project_id)
  const readable = new Set(drifted.filter((_, index) => reads[index]).map(({ logical_id }) => logical_id))
  return {
    drifted: compared.some(hasDrifted),
    resources: compared.map(({ logical_id, resource_type, status, diff }) => ({
      logical_id,
      resource_type,
      status,
      ...(diff && readable.has(logical_id) ? { diff } : {}),
    })),
  }
}

export type DriftSummary = {
  drifted: boolean
  resources: { logical_id: string; resource_type: string; status: string; fields?: string[] }[]
}

/** Returns the drift of a formation without values, which does not require access to its resources. */
export async function driftSummary(services: Services, formation: FormationRow): Promise<DriftSummary> {
  const drifted = (await compareResources(services, services.pool, formation)).filter(hasDrifted)
  return {
    drifted: drifted.length > 0,
    resources: drifted.map(({ logical_id, resource_type, status, diff }) => ({
      logical_id,
      resource_type,
      status,
      ...(diff ? { fields: Object.keys(diff.desired) } : {}),
    })),
  }
}
