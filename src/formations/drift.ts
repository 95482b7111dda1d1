import type { JsonObject } from '../core/api/flatten.ts'
import type { Queryable } from '../core/db/sql.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { isSameValue, liveResources } from './live.ts'
import type { Drift, FormationRow, ResourceDrift } from './model.ts'
import { lastShown } from './step.ts'
import { type TrackedRow, trackedResources } from './store.ts'
import type { ResourceDeclaration } from './template/shape.ts'
import { mayReadResource } from './types/calls.ts'
import { findType } from './types/find.ts'
import type { Live, TemplateType } from './types/model.ts'

/** How the resources of a formation differ from what its last deploy made of them. */

type Found = ResourceDrift & { type: TemplateType | undefined; live: Live | null; args: JsonObject }

async function compared(
  services: Services,
  db: Queryable,
  { id, project_id, template }: FormationRow,
): Promise<Found[]> {
  const tracked = (await trackedResources(db, id)).filter(row => row.physical_resource_id !== null)
  const live = await liveResources(services, db, tracked, project_id)
  const declared = template.resources as Record<string, ResourceDeclaration>
  return tracked.map(row => {
    const type = findType(services, row.resource_type)
    const now = live.get(row.physical_resource_id as string) ?? null
    const found = { logical_id: row.logical_id, resource_type: row.resource_type, type, live: now, args: row.applied }
    if (!type || (type.registered && !type.registered.capabilities.includes('read')))
      return { ...found, status: 'not_supported' }
    if (!now) return { ...found, status: 'missing' }
    const diff = differing(row, type, now, declared[row.logical_id]?.ignore_fields ?? [])
    return diff ? { ...found, status: 'drifted', diff } : { ...found, status: 'in_sync' }
  })
}

/** The applied properties that a resource shows otherwise now; null when it shows all of them as they were. */
function differing(
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
  const some = (from: JsonObject): JsonObject => Object.fromEntries(names.map(name => [name, from[name]]))
  return names.length === 0 ? null : { desired: some(row.applied), current: some(values) }
}

const isAway = ({ status }: ResourceDrift): boolean => status === 'drifted' || status === 'missing'

/** The drift of a formation as a caller sees it: values of resources that it may not read are left out. */
export async function driftFor(services: Services, caller: Caller, formation: FormationRow): Promise<Drift> {
  const { pool } = services
  const found = await compared(services, pool, formation)
  const away = found.flatMap(({ type, ...each }) => (type && each.diff ? [{ ...each, type }] : []))
  const reads = await mayReadResource(pool, caller, away, formation.project_id)
  const shown = new Set(away.filter((_, index) => reads[index]).map(({ logical_id }) => logical_id))
  return {
    drifted: found.some(isAway),
    resources: found.map(({ logical_id, resource_type, status, diff }) => ({
      logical_id,
      resource_type,
      status,
      ...(diff && shown.has(logical_id) ? { diff } : {}),
    })),
  }
}

export type DriftSummary = {
  drifted: boolean
  resources: { logical_id: string; resource_type: string; status: string; fields?: string[] }[]
}

/** The drift of a formation without values, for those who may read its resources as much as for others. */
export async function driftSummary(services: Services, formation: FormationRow): Promise<DriftSummary> {
  const found = (await compared(services, services.pool, formation)).filter(isAway)
  return {
    drifted: found.length > 0,
    resources: found.map(({ logical_id, resource_type, status, diff }) => ({
      logical_id,
      resource_type,
      status,
      ...(diff ? { fields: Object.keys(diff.desired) } : {}),
    })),
  }
}
