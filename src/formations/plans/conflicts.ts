import { changesSince } from '#control/audit/store.ts'
import { raise } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Overwrite, PlanChange } from '../records/model.ts'
import type { Plan } from './plan.ts'

/** Declared fields that were changed outside the formation since it last applied them. */

/** Returns the fields that a plan would overwrite, by logical ID, each with its last change in the audit log. */
export async function findOverwrites(
  db: Queryable,
  projectId: string,
  { steps }: Pick<Plan, 'steps'>,
): Promise<ReadonlyMap<string, Overwrite[]>> {
  const affected = steps.flatMap(({ declared, tracked, overwritten }) =>
    overwritten.length > 0 && tracked?.physical_resource_id && tracked.applied_at
      ? [{ id: declared.logical_id, resource: tracked.physical_resource_id, since: tracked.applied_at, overwritten }]
      : [],
  )
  if (affected.length === 0) return new Map()
  const [first] = affected.map(({ since }) => since).sort()
  const changes = await changesSince(
    db,
    projectId,
    affected.map(({ resource }) => resource),
    first,
  )
  return new Map(
    affected.map(({ id, resource, since, overwritten }) => {
      const own = changes.filter(
        ({ resource_public_id, created_at }) => resource_public_id === resource && created_at >= since,
      )
      return [id, overwritten.map(field => overwriteOf(field, own))]
    }),
  )
}

/** An audit entry without field names may be about any field. */
function overwriteOf(field: string, changes: Awaited<ReturnType<typeof changesSince>>): Overwrite {
  const change = changes.find(({ fields }) => fields?.includes(field)) ?? changes.find(({ fields }) => fields === null)
  return { field, changed_by: change?.principal_id ?? null, changed_at: change?.created_at ?? null }
}

export const withOverwrites = (
  changes: readonly PlanChange[],
  overwrites: ReadonlyMap<string, Overwrite[]>,
): PlanChange[] =>
  changes.map(change => {
    const own = overwrites.get(change.logical_id)
    return own ? { ...change, overwrites: own } : change
  })

/** Raises FORMATION_CONFLICT for a plan that would overwrite fields. */
export function refuseConflicts(changes: readonly PlanChange[]): void {
  const conflicts = changes.flatMap(({ logical_id, overwrites = [] }) =>
    overwrites.map(overwrite => ({ logical_id, ...overwrite })),
  )
  if (conflicts.length === 0) return
  const [{ logical_id, field }] = conflicts
  raise('FORMATION_CONFLICT', {
    message: `${field} of ${logical_id} was changed outside the formation since the last deploy`,
    meta: { conflicts },
  })
}
