import type { KindRow } from '#core/api/kind.ts'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { DeniedAction, PlanChange } from '../records/model.ts'
import type { TrackedRow } from '../records/store.ts'
import { type ExpressionMeaning, scopeOf, type TemplateScope } from '../template/expressions.ts'
import { findType } from '../types/find.ts'
import type { Live } from '../types/model.ts'
import { deleteCalls, mayCall, type ResourceCall, readParents, stepCalls } from './calls.ts'
import { type CompiledTemplate, type DeclaredResource, withoutDeferred } from './compile.ts'
import { listLiveResources } from './live.ts'
import { type ResourceStep, stepFor, toPlanChange } from './step.ts'

/** Plans: the changes that a deploy of a template would make to the resources of a formation. */

export type Plan = {
  steps: readonly ResourceStep[]
  /** Tracked resources that the template no longer declares, in deletion order. */
  removed: readonly TrackedRow[]
  live: ReadonlyMap<string, Live>
  /** Rows other than the resources themselves on which calls are authorized, by ID. */
  parents: ReadonlyMap<string, KindRow>
}

/** Matches declared and tracked resources by logical ID, current or renamed, and type. `others` are the unmatched ones. */
export function matchResources(
  { declared, moved }: Pick<CompiledTemplate, 'declared' | 'moved'>,
  tracked: readonly TrackedRow[],
): { of: Map<string, TrackedRow>; others: TrackedRow[]; problems: Problem[] } {
  const of = new Map<string, TrackedRow>()
  const problems: Problem[] = []
  const unmatched = new Set(tracked)
  const find = (logicalId: string, { type }: DeclaredResource): TrackedRow | undefined =>
    [...unmatched].find(row => row.logical_id === logicalId && row.resource_type === type.name)
  for (const each of declared) {
    const row = find(each.logical_id, each)
    if (!row) continue
    of.set(each.logical_id, row)
    unmatched.delete(row)
  }
  for (const each of declared) {
    for (const old of moved.get(each.logical_id) ?? []) {
      const row = find(old, each)
      if (!row) continue
      if (of.has(each.logical_id))
        problems.push({
          code: 'INVALID_VALUE',
          path: `moved.${old}`,
          message: `cannot be renamed: ${each.logical_id} already exists`,
        })
      else {
        of.set(each.logical_id, row)
        unmatched.delete(row)
      }
    }
  }
  return { of, others: [...unmatched], problems }
}

/**
 * Returns the scope in which parameters have their values and resources the IDs of `ids`. `omitted` is the meaning of a
 * parameter without a value: a deploy keeps the previous value.
 */
export function templateScope(
  { values, parameters }: Pick<CompiledTemplate, 'values' | 'parameters'>,
  imports: ReadonlyMap<string, string>,
  ids: (logicalId: string) => ExpressionMeaning | undefined,
  omitted: 'nothing' | 'unknown' = 'nothing',
): TemplateScope {
  return scopeOf({
    parameter: name =>
      values.has(name) ? { text: values.get(name) as string } : parameters.has(name) ? omitted : undefined,
    resource: ids,
    imported: text => (imports.has(text) ? { text: imports.get(text) as string } : 'unknown'),
    attribute: () => 'unknown',
  })
}

/** Compares a template with the resources of a formation. Raises VALIDATION_FAILED for conflicting renames. */
export async function buildPlan(
  services: Services,
  db: Queryable,
  compiled: CompiledTemplate,
  tracked: readonly TrackedRow[],
  { projectId, imports }: { projectId: string; imports: ReadonlyMap<string, string> },
): Promise<Plan> {
  const { of, others, problems } = matchResources(compiled, tracked)
  if (problems.length > 0) raiseInvalid(problems)
  const live = await listLiveResources(services, db, tracked, projectId)
  const ids = new Map<string, ExpressionMeaning>()
  const scope = templateScope(compiled, imports, name => ids.get(name) ?? 'unknown')
  const compare = (declared: DeclaredResource): Promise<ResourceStep> => {
    const row = of.get(declared.logical_id) ?? null
    const physical = row?.physical_resource_id ?? null
    return stepFor(services, declared, row, (physical && live.get(physical)) || null, scope)
  }
  const steps: ResourceStep[] = []
  for (const declared of compiled.declared) {
    const step = await compare(withoutDeferred(declared))
    const physical = step.tracked?.physical_resource_id ?? null
    steps.push(step)
    const stays = step.action === 'no-op' || (step.action === 'update' && !movesId(step))
    ids.set(declared.logical_id, stays && physical ? { text: physical } : 'unknown')
  }
  // Deferred properties refer to resources of later steps.
  for (const [index, declared] of compiled.declared.entries())
    if (declared.deferred.size > 0) steps[index] = await compare(declared)
  const removed = [...others].reverse()
  return { steps, removed, live, parents: await readPlanParents(services, db, { steps, removed, live }, projectId) }
}

/** Returns the create steps of the registered types in a template, without reading existing resources. */
export function registeredSteps(services: Services, compiled: CompiledTemplate): Promise<ResourceStep[]> {
  const scope = templateScope(compiled, new Map(), () => 'unknown')
  const registered = compiled.declared.filter(({ type }) => type.registered)
  return Promise.all(registered.map(declared => stepFor(services, declared, null, null, scope)))
}

const movesId = ({ declared: { type }, changed }: ResourceStep): boolean =>
  !type.registered && changed.some(name => type.declared.moving.includes(name))

/** Reads the rows other than the resources themselves on which the calls of a plan are authorized. */
export const readPlanParents = (
  services: Services,
  db: Queryable,
  { steps, removed, live }: Omit<Plan, 'parents'>,
  projectId: string,
): Promise<Map<string, KindRow>> =>
  readParents(
    db,
    [
      ...steps.flatMap(step => [...stepCalls(step), ...readCalls(step)]),
      ...removed.flatMap(row => removalCalls(services, row, live)),
    ],
    projectId,
  )

/** Returns the call that reads the resource of a step; none if the step changes nothing or the resource does not exist. */
function readCalls({ declared: { type }, live, action, tracked }: ResourceStep): ResourceCall[] {
  if (type.registered || !live?.row || action === 'no-op') return []
  return [{ type, operation: type.operations.read, args: tracked?.applied ?? {}, live }]
}

/** Returns the call that deletes a tracked resource; none if it is retained or no longer exists. */
function removalCalls(services: Services, row: TrackedRow, lives: ReadonlyMap<string, Live>): ResourceCall[] {
  const type = findType(services, row.resource_type)
  const live = lives.get(row.physical_resource_id ?? '')
  return type && !type.registered && live && !row.retain ? deleteCalls(type, live) : []
}

/** Returns the changes of a plan, without current values of resources that the caller may not read. */
export function presentPlan(
  services: Services,
  caller: Caller,
  { steps, removed, live, parents }: Plan,
  projectId: string,
): PlanChange[] {
  const mayRead = (step: ResourceStep): boolean =>
    readCalls(step).every(call => mayCall(caller, call, parents, projectId))
  return [
    ...steps.map(step => toPlanChange(step, mayRead(step))),
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
 * Returns a plan in which unchanged write-only values count as changed if the caller may not change them; otherwise a plan
 * would confirm a guessed value. `isFromCaller`: whether the request contains the property of the step.
 */
export function redactPlan(
  caller: Caller,
  plan: Plan,
  projectId: string,
  isFromCaller: (step: ResourceStep, name: string) => boolean,
): Plan {
  const steps = plan.steps.map((step): ResourceStep => {
    const { declared, desired, changed, live, action } = step
    const { type, ignored } = declared
    if (type.registered || !live || (action !== 'no-op' && action !== 'update')) return step
    const isConfirmed = (name: string): boolean =>
      type.writeOnly.includes(name) && !ignored.has(name) && !changed.includes(name) && isFromCaller(step, name)
    const names = Object.keys(desired).filter(name => changed.includes(name) || isConfirmed(name))
    if (!names.some(isConfirmed)) return step
    const redacted: ResourceStep = { ...step, action: 'update', changed: [...new Set([...names, ...changed])] }
    return stepCalls(redacted).every(call => mayCall(caller, call, plan.parents, projectId)) ? step : redacted
  })
  return { ...plan, steps }
}

/**
 * Returns the denied create actions of resources with an unmet condition: a later deploy of the stored template with other
 * parameters, by a caller with more permissions, would create them.
 */
export const deniedConditional = (
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

/** Returns a problem for each protected resource that a plan would destroy. */
export const planProblems = ({ steps, removed }: Plan): Problem[] => [
  ...steps
    .filter(
      ({ action, tracked, declared }) => action === 'replace' && (tracked?.prevent_destroy || declared.prevent_destroy),
    )
    .map(({ declared }) => preventDestroyProblem(declared.logical_id)),
  ...removed
    .filter(row => row.prevent_destroy && !row.retain)
    .map(({ logical_id }) => preventDestroyProblem(logical_id)),
]

export const preventDestroyProblem = (logicalId: string): Problem => ({
  code: 'PREVENT_DESTROY',
  path: `resources.${logicalId}`,
  message: 'cannot be deleted: prevent_destroy is set',
})

/** Returns the actions of a plan that the caller is not allowed. */
export function deniedActions(
  services: Services,
  caller: Caller,
  { steps, removed, live, parents }: Plan,
  projectId: string,
): DeniedAction[] {
  const denied: DeniedAction[] = []
  const check = (logical_id: string, call: ResourceCall): void => {
    const action = call.operation.action as string
    if (denied.some(each => each.logical_id === logical_id && each.action === action)) return
    if (!mayCall(caller, call, parents, projectId)) denied.push({ logical_id, resource_type: call.type.name, action })
  }
  for (const step of steps) for (const call of stepCalls(step)) check(step.declared.logical_id, call)
  for (const row of removed) for (const call of removalCalls(services, row, live)) check(row.logical_id, call)
  return denied
}

/** Raises FORBIDDEN if there are denied actions. */
export function refuseDenied(denied_actions: readonly DeniedAction[]): void {
  if (denied_actions.length > 0)
    raise('FORBIDDEN', {
      message: `Missing permissions: ${[...new Set(denied_actions.map(({ action }) => action))].slice(0, 20).join(', ')}`,
      meta: { denied_actions },
    })
}
