import { raise } from '../api/errors.ts'
import { type Kind, srn } from '../api/kind.ts'
import type { AllowTarget } from '../api/operation.ts'
import { allOf, sql } from '../db/sql.ts'
import { type Caller, type CallerFacts, isAdmin, isBackgroundWork, principalFacts } from './caller.ts'
import { couldAllow, type DecisionRequest, decide, layerCouldAllow, projectVisible, refusingLayer } from './decide.ts'
import {
  type ListRequest,
  listPossible,
  listProjects,
  type RowColumns,
  rowFilter,
  type VisibleRows,
} from './row-filter.ts'

/** What a decision is about: a row, or everything of a kind in a project (creates), there at a path when one is known. */
export type PolicyTarget = AllowTarget & { requestTags?: Record<string, string> }

/** The resource name of a target; creates are evaluated on `*`. */
export function targetName(target: PolicyTarget): string {
  const { kind, row } = target
  const project = kind.global ? null : (row?.project_id ?? target.project_id ?? null)
  if (!row) return srn(project, kind.name, '*')
  const own = kind.authorize?.(row) ?? { type: kind.name, id: row.id }
  return srn(project, own.type, own.id)
}

/** Every name of a target: by id (or `*`) and, where it has them, by path and by parent. */
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

/** The full decision on one target. The project binding is checked before, by `projectBinding`. */
export const isAllowed = (caller: CallerFacts, action: string, target: PolicyTarget): boolean =>
  caller.layers.length === 0 || decide(caller.layers, requestFor(caller, action, target))

function requestFor(caller: CallerFacts, action: string, target: PolicyTarget): DecisionRequest {
  const { kind, row } = target
  const named = row && kind.authorize?.(row)
  return {
    action,
    names: targetNames(target),
    type: named?.type ?? kind.name,
    resourceTags: target.tags ?? named?.tags ?? row?.tags ?? undefined,
    requestTags: target.requestTags,
    facts: principalFacts(caller),
  }
}

/**
 * Raises FORBIDDEN with the action. Where the rights of the author of a definition are what is missing, its meta names the
 * definition: those who use it can have it adopted by somebody with the rights.
 * @param target what was asked for; default anything
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

/** Whether a caller with an OAuth token would be permitted by its own rights: wider consent would help. */
function lacksConsentOnly(caller: CallerFacts, action: string, target?: PolicyTarget): boolean {
  if (caller.credential.type !== 'oauth_token') return false
  const own = withoutGrants(caller)
  return target ? isAllowed(own, action, target) : mayEverIn(own, action)
}

/** A caller without what grants narrow it to. */
const withoutGrants = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ kind }) => kind !== 'grant'),
})

const mayEverIn = (caller: CallerFacts, action: string): boolean =>
  caller.layers.every(layer => layerCouldAllow(layer, action, caller.project_id ?? undefined))

/** Which of the actions the rights of the user allow somewhere in the project of an OAuth token. */
export const isConsentable = (caller: CallerFacts, actions: readonly string[]): string[] =>
  actions.filter(action => mayEverIn(withoutGrants(caller), action))

/** Whether what grants narrow a caller to allows an action at all; true without grants. */
export const grantsAllow = (caller: CallerFacts, action: string): boolean =>
  caller.layers.every(layer => layer.kind !== 'grant' || layerCouldAllow(layer, action))

/** Raises FORBIDDEN unless the caller is there and may. */
export function requirePermitted(
  caller: CallerFacts | null,
  action: string,
  target: PolicyTarget,
): asserts caller is CallerFacts {
  if (!caller || !isAllowed(caller, action, target)) raiseForbidden(caller, action, target)
}

/**
 * Decisions that are for people are not made by work in the background, which would decide about itself. Raises FORBIDDEN.
 */
export function requirePerson(caller: CallerFacts, action: string): void {
  if (isBackgroundWork(caller))
    raise('FORBIDDEN', { message: 'Work in the background does not decide for people', meta: { action } })
}

/** `context.allow` for a caller that makes no request, or for work whose caller may be gone. */
export const allowedPatterns =
  (caller: CallerFacts | null) =>
  (action: string, target: AllowTarget): void =>
    requirePermitted(caller, action, target)

/** A caller without what authors of definitions allow: what it may do itself, within its bounds. */
export const ownRights = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ author_of }) => author_of === undefined),
})

/** What the authors of the definitions that led to a caller allow. */
export const authorsRights = <C extends CallerFacts>(caller: C): C => ({
  ...caller,
  layers: caller.layers.filter(({ author_of }) => author_of !== undefined),
})

export const couldEverAllow = (caller: Caller, action: string): boolean => couldAllow(caller.layers, action)

/** Whether the caller may know that something of the project exists. */
export function canSeeProject(caller: Caller, projectId: string | null): boolean {
  if (projectId === null) return true
  if (caller.project_id !== null && caller.project_id !== projectId) return false
  // What the author of a definition may not know the caller may; the decision then names the definition.
  return projectVisible(ownRights(caller).layers, projectId)
}

/** The project a bound credential may not leave. Raises API_KEY_PROJECT_SCOPE. */
export function requireBoundProject(caller: Caller, requested: string): void {
  if (caller.project_id !== null && caller.project_id !== requested) {
    raise('API_KEY_PROJECT_SCOPE', { meta: { scoped_project: caller.project_id, requested_project: requested } })
  }
}

/** Global operations need the admin role and a credential that is bound to no project; a key with policies needs their Allow too. */
export function passesAdminGate(caller: Caller, action: string, target: PolicyTarget | null): boolean {
  if (!isAdmin(caller) || caller.project_id !== null) return false
  if (caller.credential.type === 'user') return true
  if (caller.credential.type !== 'api_key') return false
  return (
    caller.layers.length === 0 || (target === null ? couldEverAllow(caller, action) : isAllowed(caller, action, target))
  )
}

/** What kind of rows a list has, as policies name it. */
export type ListTarget = Pick<ListRequest, 'type' | 'parentType'>

/** The same for the rows of a kind; `*` where an operation is about none. */
export const listTargetOf = (kind: Pick<Kind, 'name' | 'parent'> | null): ListTarget => ({
  type: kind?.name ?? '*',
  parentType: kind?.parent?.kind,
})

/** The rows of a list the caller may see, in a project or where none is named in the deployment. */
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

/** Whether a list over a named project can show anything at all. */
export const listAllowed = (caller: Caller, action: string, listed: ListTarget, projectId: string): boolean =>
  caller.layers.length === 0 ||
  listPossible(caller.layers, { ...listed, action, projectId, facts: principalFacts(caller) })

/** Whether a list without a named project can show rows of any project. */
export function listAllowedAnywhere(caller: Caller, action: string, listed: ListTarget): boolean {
  if (caller.layers.length === 0) return true
  const projects = listProjects(caller.layers, { ...listed, action, facts: principalFacts(caller) })
  return projects === 'all' || projects.length > 0
}
