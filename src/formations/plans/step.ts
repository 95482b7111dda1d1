import type { JsonObject } from '#core/api/flatten.ts'
import type { ResourceType } from '#core/api/resource-type.ts'
import type { Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { PlanChange } from '../records/model.ts'
import type { TrackedRow } from '../records/store.ts'
import type { TemplateScope } from '../template/expressions.ts'
import type { Live } from '../types/model.ts'
import { propertyName, type ResolvedProperties, resolveProperties } from '../types/properties.ts'
import { type DeclaredResource, NO_ECHO } from './compile.ts'
import { isSameValue } from './live.ts'

/** Steps: the change that one resource requires. Plans and deploys share this code. */

export type ResourceStep = {
  declared: DeclaredResource
  tracked: TrackedRow | null
  live: Live | null
  /** `recreate`: the tracked resource no longer exists. `replace`: a new resource replaces it. */
  action: 'create' | 'recreate' | 'replace' | 'update' | 'no-op'
  /** Properties with expressions resolved, without expressions that have no value. */
  desired: JsonObject
  /** Properties that differ from the current resource, in template order. */
  changed: readonly string[]
  /** Changed properties that were changed outside the formation since the last deploy. */
  overwritten: readonly string[]
  /** Problems that refuse the step before its first call. */
  problems: readonly Problem[]
}

/**
 * Returns the step from the current to the declared state of a resource. Compares only declared properties, except properties
 * with a parameter that keeps its previous value (`use_previous_value`).
 */
export async function stepFor(
  services: Services,
  declared: DeclaredResource,
  tracked: TrackedRow | null,
  live: Live | null,
  scope: TemplateScope,
): Promise<ResourceStep> {
  const { type, ignored } = declared
  const existing = tracked?.physical_resource_id != null && live !== null
  const { resolved, problems } = await resolveProperties(services, type, declared.properties, scope, {
    at: '',
    complete: !existing,
  })
  const { together, exhaustive } = type.registered ? NOT_COUPLED : type.declared
  const desired = Object.fromEntries(
    [...resolved].flatMap(([name, { nothing, value }]): [string, unknown][] => {
      if (!nothing) return [[name, value]]
      // Properties that are written together include the previous value.
      return together.includes(name) && tracked && name in tracked.applied ? [[name, tracked.applied[name]]] : []
    }),
  )
  const certain = problems.filter(({ path }) => !hasUnknownValue(resolved, path))
  const step = { declared, tracked, live, desired, problems: certain, changed: Object.keys(desired), overwritten: [] }
  if (tracked?.physical_resource_id == null) return { ...step, action: 'create' }
  if (!live) return { ...step, action: 'recreate' }
  const differing = Object.keys(desired).filter(
    name =>
      !ignored.has(name) &&
      differs(services, declared, name, resolved.get(name)?.unknown === true, desired[name], tracked, live),
  )
  const dropped =
    exhaustive && together.some(name => name in desired)
      ? together.filter(name => !resolved.has(name) && !ignored.has(name) && live.values[name] != null)
      : []
  const changed = [...differing, ...dropped]
  const overwritten = changed.filter(
    name => name in tracked.applied && name in live.values && !isSameValue(live.values[name], lastShown(tracked, name)),
  )
  const fixed = changed
    .filter(name => type.fixed.has(name))
    .map((name): Problem => ({ code: 'IMMUTABLE', path: name, message: 'cannot be changed after creation' }))
  if (fixed.length > 0) return { ...step, changed, overwritten, action: 'update', problems: [...fixed, ...certain] }
  if (changed.some(name => type.replaced.has(name))) return { ...step, changed, overwritten, action: 'replace' }
  return { ...step, changed, overwritten, action: changed.length === 0 ? 'no-op' : 'update' }
}

const NOT_COUPLED: Pick<ResourceType, 'together' | 'exhaustive'> = { together: [], exhaustive: false }

const hasUnknownValue = (resolved: ResolvedProperties, path: string): boolean =>
  resolved.get(propertyName(path))?.unknown === true

/** Returns the value that the resource had for a property after the last deploy. */
export const lastShown = ({ applied, shown }: TrackedRow, name: string): unknown =>
  name in shown ? shown[name] : applied[name]

function differs(
  { secrets }: Services,
  { type }: DeclaredResource,
  name: string,
  unknown: boolean,
  value: unknown,
  tracked: TrackedRow,
  { values }: Live,
): boolean {
  if (unknown) return true
  if (type.writeOnly.includes(name)) {
    // A handler may not have stored the last value.
    if (type.registered) return true
    const hash = tracked.hashes[name]
    return hash === undefined || !secrets.recognises(hash, JSON.stringify(value))
  }
  if (!(name in values)) return !(name in tracked.applied) || !isSameValue(value, tracked.applied[name])
  if (isSameValue(value, values[name])) return false
  // The resource may normalize a value.
  const isUnchanged =
    name in tracked.applied &&
    isSameValue(value, tracked.applied[name]) &&
    isSameValue(values[name], lastShown(tracked, name))
  return !isUnchanged
}

/** Returns the plan entry of a step. `readable`: whether the caller may read the resource. */
export function toPlanChange(
  { declared, tracked, live, action, desired, changed }: ResourceStep,
  readable: boolean,
): PlanChange {
  const { logical_id, type } = declared
  const change: PlanChange = {
    logical_id,
    resource_type: type.name,
    action: action === 'create' || action === 'no-op' ? action : 'update',
    ...(tracked?.physical_resource_id ? { physical_resource_id: tracked.physical_resource_id } : {}),
    ...(action === 'replace' ? { replaces: true } : {}),
  }
  if (action === 'no-op') return change
  const shown = (values: JsonObject): JsonObject =>
    Object.fromEntries(changed.map(name => [name, type.writeOnly.includes(name) ? NO_ECHO : (values[name] ?? null)]))
  if (!live) return { ...change, diff: { desired: shown(desired), current: null } }
  return readable ? { ...change, diff: { desired: shown(desired), current: shown(live.values) } } : change
}
