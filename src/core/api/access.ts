import { raise } from '../base/errors.ts'
import { allOf, sql } from '../db/sql.ts'
import { type Caller, type CallerFacts, isAdmin, isBackgroundWork, principalFacts } from '../iam/caller.ts'
import {
  couldAllow,
  type DecisionRequest,
  decide,
  layerCouldAllow,
  projectVisible,
  refusingLayer,
} from '../iam/decide.ts'
import {
  type ListRequest,
  listPossible,
  listProjects,
  type RowColumns,
  rowFilter,
  type VisibleRows,
} from '../iam/row-filter.ts'
import { type Kind, srn } from './kind.ts'
import type { AllowTarget, Operation } from './operation.ts'

/** Target of a decision: a row, or all rows of a kind in a project (creates), optionally at a path. */
export type PolicyTarget = AllowTarget & { requestTags?: Record<string, string> }

/** Returns the resource name of a target; creates are evaluated on `*`. */
export function targetName(target: PolicyTarget): string {
  const { kind, row } = target
  const project = kind.global ? null : (row?.project_id ?? target.project_id ?? null)
  if (!row) return srn(project, kind.name, '*')
  const own = kind.authorize?.(row) ?? { type: kind.name, id: row.id }
  return srn(project, own.type, own.id)
}

/** Returns all names of a target: by id (or `*`), by path and by parent. */
function targetNames(target: PolicyTarget): string[] {
  const { kind, row } = target
  const names = [targetName(target)]
  const project = row?.project_id ?? target.project_id ?? null
  const path = row ? kind.path?.(row) : target.path
  if (path != null) names.push(srn(project, kind.name, path))
  const parent = row && kind.parent && (row as Record<string, unknown>)[kind.parent.column]
  if (kind.parent && parent != null) names.push(srn(project, kind.parent.kind, String(parent)))
  return names
}

/** Whether an action is allowed on a target. The caller has already checked the project binding (requireBoundProject). */
export const isAllowed = (caller: CallerFacts, action: string, target: PolicyTarget): boolean =>
  caller.layers.length === 0 || decide(caller.layers, requestFor(caller, action, target))

function requestFor(caller: CallerFacts, action: string, target: PolicyTarget): DecisionRequest {
  const { kind, row } = target
  const substitute = row && kind.authorize?.(row)
  return {
    action,
    names: targetNames(target),
    type: substitute?.type ?? kind.name,
    resourceTags: target.tags ?? substitute?.tags ?? row?.tags ?? undefined,
    requestTags: target.requestTags,
    facts: principalFacts(caller),
  }
}

/**
 * Raises FORBIDDEN with the action. If a permission of a definition's author is missing, meta contains the definition, which
 * a principal with the permission can adopt.
 * @param target requested target; default any
 */
export function raiseForbidden(caller: CallerFacts | null, action: string, target?: PolicyTarget): never {
  const layers = caller?.layers ?? []
  const layer =
    caller && target
      ? refusingLayer(layers, requestFor(caller, action, target))
      : layers.find(each => !layerCouldAllow(each, action))
  const { definition, unavailable } = layer?.author_of ?? {}
  const author =
    definition === undefined ? {} : { resource: definition, ...(unavailable && { author_unavailable: true }) }
  return raise('FORBIDDEN', {
    meta: { action, ...author },
    grantLacks: caller !== null && lacksConsentOnly(caller, action, target),
  })
}

/** Whether only the consent of an OAuth token is missing: the user's own permissions allow the action. */
function lacksConsentOnly(caller: CallerFacts, action: string, target?: PolicyTarget): boolean {
  if (caller.credential.type !== 'oauth_token') return false
  const own = withoutGrants(caller)
  return target ? isAllowed(own, action, target) : couldAllowInProject(own, action)
}

/** Returns a caller without the limits of OAuth grants. */
const withoutGrants = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ kind }) => kind !== 'grant'),
})

/** Whether an action could be allowed on a resource of a project, for a credential that may be unbound. */
export const couldAllowIn = (caller: CallerFacts, action: string, projectId: string): boolean =>
  caller.layers.every(layer => layerCouldAllow(layer, action, projectId))

const couldAllowInProject = (caller: CallerFacts, action: string): boolean =>
  caller.layers.every(layer => layerCouldAllow(layer, action, caller.project_id ?? undefined))

/** Returns the actions that the user's permissions could allow in the project of an OAuth token. */
export const listConsentable = (caller: CallerFacts, actions: readonly string[]): string[] =>
  actions.filter(action => couldAllowInProject(withoutGrants(caller), action))

/** Whether the OAuth grants of a caller could allow an action; true if there are none. */
export const grantsAllow = (caller: CallerFacts, action: string): boolean =>
  caller.layers.every(layer => layer.kind !== 'grant' || layerCouldAllow(layer, action))

/** Raises FORBIDDEN unless there is a caller and the action is allowed. */
export function requirePermitted(
  caller: CallerFacts | null,
  action: string,
  target: PolicyTarget,
): asserts caller is CallerFacts {
  if (!caller || !isAllowed(caller, action, target)) raiseForbidden(caller, action, target)
}

/** Raises FORBIDDEN for background work, which must not make decisions about itself in place of a person. */
export function requirePerson(caller: CallerFacts, action: string): void {
  if (isBackgroundWork(caller))
    raise('FORBIDDEN', { message: 'Background work cannot make this decision; a person must', meta: { action } })
}

/** Whether the caller is of a kind that may call an operation, whatever its permissions: definitions may call few. */
export const mayReach = (
  caller: Pick<CallerFacts, 'credential'>,
  { byDefinitions }: Pick<Operation, 'byDefinitions'>,
): boolean => byDefinitions || !isBackgroundWork(caller)

/** Returns an equivalent of `context.allow` for work without a request; a missing caller is allowed nothing. */
export const permissionCheckFor =
  (caller: CallerFacts | null) =>
  (action: string, target: AllowTarget): void =>
    requirePermitted(caller, action, target)

/** Returns a caller without the layers of definition authors: its own permissions, within its bounds. */
export const ownPermissions = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ author_of }) => author_of === undefined),
})

/** Returns a caller with only the layers of definition authors. */
export const authorPermissions = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ author_of }) => author_of !== undefined),
})

export const couldEverAllow = (caller: Caller, action: string): boolean => couldAllow(caller.layers, action)

/** Whether the existence of a project's resources is visible to the caller. */
export function canSeeProject(caller: Caller, projectId: string | null): boolean {
  if (projectId === null) return true
  if (caller.project_id !== null && caller.project_id !== projectId) return false
  // Visibility ignores authors of definitions, so that the refusal can contain the definition.
  return projectVisible(ownPermissions(caller).layers, projectId)
}

/** Raises API_KEY_PROJECT_SCOPE if a bound credential requests another project. */
export function requireBoundProject(caller: Caller, requested: string): void {
  if (caller.project_id !== null && caller.project_id !== requested) {
    raise('API_KEY_PROJECT_SCOPE', { meta: { scoped_project: caller.project_id, requested_project: requested } })
  }
}

/**
 * Whether a caller may use a global operation: requires the admin role and an unbound credential; for a key with policies,
 * also an Allow.
 */
export function passesAdminGate(caller: Caller, action: string, target: PolicyTarget | null): boolean {
  if (!isAdmin(caller) || caller.project_id !== null) return false
  if (caller.credential.type === 'user') return true
  if (caller.credential.type !== 'api_key') return false
  return (
    caller.layers.length === 0 || (target === null ? couldEverAllow(caller, action) : isAllowed(caller, action, target))
  )
}

/** The rows of a list, by resource type in policies. */
export type ListTarget = Pick<ListRequest, 'type' | 'parentType'>

/** Returns the list target of a kind; `*` for an operation without a kind. */
export const listTargetOf = (kind: Pick<Kind, 'name' | 'parent'> | null): ListTarget => ({
  type: kind?.name ?? '*',
  parentType: kind?.parent?.kind,
})

/** Returns the condition of the rows visible to the caller, in a project or, if null, in the deployment. */
export function visibleRows(
  caller: Caller,
  { action, type, project, parentType }: ListTarget & { action: string; project: string | null },
  columns: RowColumns,
): VisibleRows {
  const filter = rowFilter(
    caller.layers,
    { action, type, parentType, facts: principalFacts(caller), projectId: project ?? undefined },
    columns,
  )
  if (filter === false) return { rows: sql.fragment`false`, all: false }
  const rows = allOf([
    project !== null && sql.fragment`${columns.project} = ${project}`,
    filter !== true && sql.fragment`(${filter})`,
  ])
  return { rows, all: filter === true }
}

/** Whether a list in a project can contain visible rows. */
export const listAllowed = (caller: Caller, action: string, target: ListTarget, projectId: string): boolean =>
  caller.layers.length === 0 ||
  listPossible(caller.layers, { ...target, action, projectId, facts: principalFacts(caller) })

/** Whether a list over all projects can contain visible rows. */
export function listAllowedAnywhere(caller: Caller, action: string, target: ListTarget): boolean {
  if (caller.layers.length === 0) return true
  const projects = listProjects(caller.layers, { ...target, action, facts: principalFacts(caller) })
  return projects === 'all' || projects.length > 0
}
