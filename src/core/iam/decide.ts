/**
 * The permission engine: pure functions that decide requests of all surfaces. They depend on no module or table; callers
 * provide layers of compiled documents, names and tags.
 */
import {
  type MatchContext,
  matchesAction,
  type NamePattern,
  type PrincipalFacts,
  parseNames,
  statementMatches,
  type TagConditions,
} from './match.ts'
import type { CompiledDocument, CompiledStatement } from './policy.ts'

/** A set of documents that must allow a request by itself. A caller without layers is an admin, who is allowed everything. */
export type Layer = {
  kind: 'user' | 'key' | 'grant' | 'trigger' | 'agent'
  documents: CompiledDocument[]
  /** For the layer of a definition's author: the definition, and whether the author is unavailable and allows nothing. */
  author_of?: { definition: string; unavailable: boolean }
}

export type DecisionRequest = {
  /** Canonical `<module>:<Action>`. */
  action: string
  /** All srn names of a resource: by id, path and parent. */
  names: string[]
  /** Resource type, for ResourceType conditions. */
  type: string
  /** Tags of the resource; several sets if each must be allowed (stored and resulting, container and own). */
  resourceTags?: TagConditions | null | readonly (TagConditions | null)[]
  /** Tags in the request body, for creates and tag writes. */
  requestTags?: TagConditions
  facts: PrincipalFacts
}

/**
 * Whether a request on a resource is allowed: every layer must allow it, and any Deny in a layer denies it. An Allow or Deny
 * on any of its names applies to the resource. Every tag set must be allowed. Names that are not `srn:` names are denied.
 */
export function decide(layers: readonly Layer[], request: DecisionRequest): boolean {
  if (layers.length === 0) return true
  const names = parseNames(request.names)
  return names !== null && layers.every(layer => layerDecides(layer, names, request))
}

/** Returns the first layer that does not allow a request, or null. */
export function refusingLayer(layers: readonly Layer[], request: DecisionRequest): Layer | null {
  const names = parseNames(request.names)
  return layers.find(layer => names === null || !layerDecides(layer, names, request)) ?? null
}

const layerDecides = (layer: Layer, names: readonly NamePattern[], request: DecisionRequest): boolean =>
  tagSetsOf(request).every(tags => layerAllows(layer, request.action, names, request, tags))

/** Returns the tag sets of a decision, at least one. */
export function tagSetsOf({ resourceTags }: DecisionRequest): readonly (TagConditions | null | undefined)[] {
  if (!Array.isArray(resourceTags)) return [resourceTags as TagConditions | null | undefined]
  return resourceTags.length > 0 ? resourceTags : [undefined]
}

function layerAllows(
  layer: Layer,
  action: string,
  names: readonly NamePattern[],
  context: MatchContext,
  resourceTags: TagConditions | null | undefined,
): boolean {
  let allowed = false
  for (const document of layer.documents) {
    if (!document.valid) return false
    for (const statement of document.statements) {
      if (!statement.deny && allowed) continue
      if (!statementMatches(statement, action, names, context, resourceTags)) continue
      if (statement.deny) return false
      allowed = true
    }
  }
  return allowed
}

/**
 * Whether the action could be allowed on any resource. False results in the same 403 for every id, so an unconditional Deny
 * on all resources counts as well.
 */
export const couldAllow = (layers: readonly Layer[], action: string): boolean =>
  layers.every(layer => layerCouldAllow(layer, action))

/**
 * Whether a layer could allow the action on any resource.
 * @param projectId limits the check to resources of this project
 */
export function layerCouldAllow({ documents }: Layer, action: string, projectId?: string): boolean {
  let allowed = false
  for (const document of documents) {
    if (!document.valid) return false
    for (const statement of document.statements) {
      if (!matchesAction(statement, action)) continue
      if (!statement.deny) allowed ||= projectId === undefined || reaches(statement, projectId)
      else if (statement.resources === null && statement.conditions.length === 0) return false
    }
  }
  return allowed
}

const reaches = ({ resources }: CompiledStatement, projectId: string): boolean =>
  resources === null || resources.some(({ project }) => project === null || project === projectId)

/** Whether every layer has an Allow, for any action, whose resource pattern can match in the project. */
export function projectVisible(layers: readonly Layer[], projectId: string): boolean {
  return layers.every(
    layer =>
      layer.documents.every(document => document.valid) &&
      layer.documents.some(document =>
        document.statements.some(statement => !statement.deny && reaches(statement, projectId)),
      ),
  )
}
