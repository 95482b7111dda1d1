import { type Problem, raiseInvalid } from '../core/api/errors.ts'
import type { KindRow } from '../core/api/kind.ts'
import type { Queryable } from '../core/db/sql.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { liveResources } from './live.ts'
import type { DeniedAction, PlanChange } from './model.ts'
import { changeOf, type ResourceStep, stepFor } from './step.ts'
import type { TrackedRow } from './store.ts'
import type { CompiledTemplate, DeclaredResource } from './template/compile.ts'
import { type ExpressionMeaning, scopeOf, type TemplateScope } from './template/expressions.ts'
import { callsOf, deletionOf, mayCall, parentsOf, type ResourceCall } from './types/calls.ts'
import { findType } from './types/find.ts'
import type { Live } from './types/model.ts'

/** What a deploy of a template would do with what a formation has. */

export type Plan = {
  steps: readonly ResourceStep[]
  /** Tracked resources that the template no longer declares, in the order in which they go. */
  removed: readonly TrackedRow[]
  live: ReadonlyMap<string, Live>
  /** Rows that calls are decided on beside the resources themselves, by their ids. */
  parents: ReadonlyMap<string, KindRow>
}

/** The tracked resource of each declared one, and the others. Applies the renames of the template. */
export function matchResources(
  { declared, moved }: Pick<CompiledTemplate, 'declared' | 'moved'>,
  tracked: readonly TrackedRow[],
): { of: Map<string, TrackedRow>; others: TrackedRow[]; problems: Problem[] } {
  const of = new Map<string, TrackedRow>()
  const problems: Problem[] = []
  const left = new Set(tracked)
  const take = (logicalId: string, { type }: DeclaredResource): TrackedRow | undefined =>
    [...left].find(row => row.logical_id === logicalId && row.resource_type === type.name)
  for (const each of declared) {
    const row = take(each.logical_id, each)
    if (!row) continue
    of.set(each.logical_id, row)
    left.delete(row)
  }
  for (const each of declared) {
    for (const old of moved.get(each.logical_id) ?? []) {
      const row = take(old, each)
      if (!row) continue
      if (of.has(each.logical_id))
        problems.push({ code: 'INVALID_VALUE', path: `moved.${old}`, message: `${each.logical_id} exists beside it` })
      else {
        of.set(each.logical_id, row)
        left.delete(row)
      }
    }
  }
  return { of, others: [...left], problems }
}

/** What names mean: parameters have their values, resources the ids that `ids` has. */
export function namesOf(
  { values, parameters }: Pick<CompiledTemplate, 'values' | 'parameters'>,
  imports: ReadonlyMap<string, string>,
  ids: (logicalId: string) => ExpressionMeaning | undefined,
): TemplateScope {
  return scopeOf({
    parameter: name =>
      values.has(name) ? { text: values.get(name) as string } : parameters.has(name) ? 'nothing' : undefined,
    resource: ids,
    imported: text => (imports.has(text) ? { text: imports.get(text) as string } : 'unknown'),
    attribute: () => 'unknown',
  })
}

/** Compares a template with what a formation has. Raises VALIDATION_FAILED for renames that collide. */
export async function planOf(
  services: Services,
  db: Queryable,
  compiled: CompiledTemplate,
  tracked: readonly TrackedRow[],
  { projectId, imports }: { projectId: string; imports: ReadonlyMap<string, string> },
): Promise<Plan> {
  const { of, others, problems } = matchResources(compiled, tracked)
  if (problems.length > 0) raiseInvalid(problems)
  const live = await liveResources(services, db, tracked, projectId)
  const ids = new Map<string, ExpressionMeaning>()
  const scope = namesOf(compiled, imports, name => ids.get(name) ?? 'unknown')
  const steps: ResourceStep[] = []
  for (const declared of compiled.declared) {
    const row = of.get(declared.logical_id) ?? null
    const physical = row?.physical_resource_id ?? null
    const step = await stepFor(services, declared, row, (physical && live.get(physical)) || null, scope)
    steps.push(step)
    const stays = step.action === 'no-op' || (step.action === 'update' && !movesId(step))
    ids.set(declared.logical_id, stays && physical ? { text: physical } : 'unknown')
  }
  const removed = [...others].reverse()
  return { steps, removed, live, parents: await parentsOfPlan(services, db, { steps, removed, live }, projectId) }
}

/** What a template declares of registered types, where nothing of it exists yet and nothing is looked up. */
export function handledSteps(services: Services, compiled: CompiledTemplate): Promise<ResourceStep[]> {
  const scope = namesOf(compiled, new Map(), () => 'unknown')
  const handled = compiled.declared.filter(({ type }) => type.registered)
  return Promise.all(handled.map(declared => stepFor(services, declared, null, null, scope)))
}

const movesId = ({ declared: { type }, changed }: ResourceStep): boolean =>
  !type.registered && changed.some(name => type.declared.moving.includes(name))

/** The rows that the calls of a plan are decided on beside the resources themselves. */
export const parentsOfPlan = (
  services: Services,
  db: Queryable,
  { steps, removed, live }: Omit<Plan, 'parents'>,
  projectId: string,
): Promise<Map<string, KindRow>> =>
  parentsOf(
    db,
    [
      ...steps.flatMap(step => [...callsOf(step), ...readOf(step)]),
      ...removed.flatMap(row => removalOf(services, row, live)),
    ],
    projectId,
  )

/** The call that reads the resource of a step that changes it. */
function readOf({ declared: { type }, live, action, tracked }: ResourceStep): ResourceCall[] {
  if (type.registered || !live?.row || action === 'no-op') return []
  return [{ type, operation: type.operations.read, args: tracked?.applied ?? {}, live }]
}

/** The call that deletes a tracked resource; none for one that is retained or gone. */
function removalOf(services: Services, row: TrackedRow, lives: ReadonlyMap<string, Live>): ResourceCall[] {
  const type = findType(services, row.resource_type)
  const live = lives.get(row.physical_resource_id ?? '')
  return type && !type.registered && live && !row.retain ? deletionOf(type, live) : []
}

/** A plan as it is shown, to a caller who sees the resources that it may read. */
export function shownPlan(
  services: Services,
  caller: Caller,
  { steps, removed, live, parents }: Plan,
  projectId: string,
): PlanChange[] {
  const mayRead = (step: ResourceStep): boolean => readOf(step).every(call => mayCall(caller, call, parents, projectId))
  return [
    ...steps.map(step => changeOf(step, mayRead(step))),
    ...removed
      .filter(({ physical_resource_id: id }) => id !== null)
      .map(
        (row): PlanChange => ({
          logical_id: row.logical_id,
          resource_type: row.resource_type,
          action: row.retain || !live.has(row.physical_resource_id as string) ? 'no-op' : 'delete',
          physical_resource_id: row.physical_resource_id as string,
        }),
      ),
  ].filter(({ resource_type }) => findType(services, resource_type) !== undefined)
}

/**
 * A plan as a caller may know it. That a write-only value is the one which is kept is told only to those who may change it:
 * to others it would confirm a guess. `told`: the caller gave this property of a step itself.
 */
export function planKnownTo(
  caller: Caller,
  plan: Plan,
  projectId: string,
  told: (step: ResourceStep, name: string) => boolean,
): Plan {
  const steps = plan.steps.map((step): ResourceStep => {
    const { declared, desired, changed, live, action } = step
    const { type, ignored } = declared
    if (type.registered || !live || (action !== 'no-op' && action !== 'update')) return step
    const isKept = (name: string): boolean =>
      type.writeOnly.includes(name) && !ignored.has(name) && !changed.includes(name) && told(step, name)
    const names = Object.keys(desired).filter(name => changed.includes(name) || isKept(name))
    if (!names.some(isKept)) return step
    const asked: ResourceStep = { ...step, action: 'update', changed: [...new Set([...names, ...changed])] }
    return callsOf(asked).every(call => mayCall(caller, call, plan.parents, projectId)) ? step : asked
  })
  return { ...plan, steps }
}

/**
 * The actions that the caller lacks of resources whose conditions do not hold. Whoever deploys the stored template with other
 * parameters would create them with rights that its author may not have.
 */
export const deniedDormant = (
  caller: Caller,
  { dormant }: Pick<CompiledTemplate, 'dormant'>,
  projectId: string,
): DeniedAction[] =>
  dormant.flatMap(({ logical_id, type, properties }) => {
    if (type.registered) return []
    const operation = type.operations.create
    const call: ResourceCall = { type, operation, args: properties, live: null }
    return mayCall(caller, call, new Map(), projectId)
      ? []
      : [{ logical_id, resource_type: type.name, action: operation.action as string }]
  })

/** Problems of a plan that refuse it before anything is applied. */
export const planProblems = ({ steps, removed }: Plan): Problem[] => [
  ...steps
    .filter(
      ({ action, tracked, declared }) => action === 'replace' && (tracked?.prevent_destroy || declared.prevent_destroy),
    )
    .map(({ declared }) => listDestroyed(declared.logical_id)),
  ...removed.filter(row => row.prevent_destroy && !row.retain).map(({ logical_id }) => listDestroyed(logical_id)),
]

export const listDestroyed = (logicalId: string): Problem => ({
  code: 'PREVENT_DESTROY',
  path: `resources.${logicalId}`,
  message: 'would be deleted, which prevent_destroy refuses',
})

/** The actions of a plan that the caller lacks. */
export function deniedActions(
  services: Services,
  caller: Caller,
  { steps, removed, live, parents }: Plan,
  projectId: string,
): DeniedAction[] {
  const denied: DeniedAction[] = []
  const ask = (logical_id: string, call: ResourceCall): void => {
    const action = call.operation.action as string
    if (denied.some(each => each.logical_id === logical_id && each.action === action)) return
    if (!mayCall(caller, call, parents, projectId)) denied.push({ logical_id, resource_type: call.type.name, action })
  }
  for (const step of steps) for (const call of callsOf(step)) ask(step.declared.logical_id, call)
  for (const row of removed) for (const call of removalOf(services, row, live)) ask(row.logical_id, call)
  return denied
}
