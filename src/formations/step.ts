import type { Problem } from '../core/api/errors.ts'
import type { JsonObject } from '../core/api/flatten.ts'
import type { ResourceType } from '../core/api/resource-type.ts'
import type { Services } from '../core/process/services.ts'
import { isSameValue } from './live.ts'
import type { PlanChange } from './model.ts'
import type { TrackedRow } from './store.ts'
import { type DeclaredResource, NO_ECHO } from './template/compile.ts'
import type { TemplateScope } from './template/expressions.ts'
import { fitProperty, propertyIn, type ResolvedProperties } from './template/properties.ts'
import type { Live } from './types/model.ts'

/** What has to be done with one resource: the same code for a plan, which shows it, and for a deploy, which does it. */

export type ResourceStep = {
  declared: DeclaredResource
  tracked: TrackedRow | null
  live: Live | null
  /** `recreate`: it is tracked and gone. `replace`: another one takes its place. */
  action: 'create' | 'recreate' | 'replace' | 'update' | 'no-op'
  /** Properties with their expressions resolved, without those that resolve to nothing. */
  desired: JsonObject
  /** Properties that differ from the resource as it is, in the order of the template. */
  changed: readonly string[]
  /** Those among them that somebody else has changed since the last deploy. */
  overwritten: readonly string[]
  /** What refuses the step before anything is called. */
  problems: readonly Problem[]
}

/**
 * Compares what a template declares with what is there. Only declared properties count, and of those whose value the caller
 * left as it was (`use_previous_value`) none.
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
  const { resolved, problems } = await fitProperty(services, type, declared.properties, scope, {
    at: '',
    complete: !existing,
  })
  const { together, exhaustive } = type.registered ? NOT_COUPLED : type.declared
  const desired = Object.fromEntries(
    [...resolved].flatMap(([name, { nothing, value }]): [string, unknown][] => {
      if (!nothing) return [[name, value]]
      // What is written as one takes along what the caller left as it was.
      return together.includes(name) && tracked && name in tracked.applied ? [[name, tracked.applied[name]]] : []
    }),
  )
  const sure = problems.filter(({ path }) => !isUnsure(resolved, path))
  const step = { declared, tracked, live, desired, problems: sure, changed: Object.keys(desired), overwritten: [] }
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
    .map((name): Problem => ({ code: 'IMMUTABLE', path: name, message: 'cannot be changed once the resource exists' }))
  if (fixed.length > 0) return { ...step, changed, overwritten, action: 'update', problems: [...fixed, ...sure] }
  if (changed.some(name => type.replaced.has(name))) return { ...step, changed, overwritten, action: 'replace' }
  return { ...step, changed, overwritten, action: changed.length === 0 ? 'no-op' : 'update' }
}

const NOT_COUPLED: Pick<ResourceType, 'together' | 'exhaustive'> = { together: [], exhaustive: false }

const isUnsure = (resolved: ResolvedProperties, path: string): boolean =>
  resolved.get(propertyIn(path))?.unknown === true

/** What a property was shown as when it was last applied. */
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
    // What a handler keeps of a value nobody knows.
    if (type.registered) return true
    const hash = tracked.hashes[name]
    return hash === undefined || !secrets.recognises(hash, JSON.stringify(value))
  }
  if (!(name in values)) return !(name in tracked.applied) || !isSameValue(value, tracked.applied[name])
  if (isSameValue(value, values[name])) return false
  // The resource may show a value in another form than it was given.
  const kept =
    name in tracked.applied &&
    isSameValue(value, tracked.applied[name]) &&
    isSameValue(values[name], lastShown(tracked, name))
  return !kept
}

/** A step as a plan shows it. `readable`: the caller may read the resource. */
export function changeOf(
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
