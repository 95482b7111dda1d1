/**
 * The permission engine: one set of pure functions decides every request, whatever the surface. It knows no module and
 * no table; callers bring layers of compiled documents, names and tags.
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

/** One set of documents that has to allow by itself. No layer at all is the admin: everything is allowed. */
export type Layer = {
  kind: 'user' | 'key' | 'grant' | 'trigger' | 'agent'
  documents: CompiledDocument[]
  /** On a layer of the author of a definition: its id, and whether the author is gone and allows nothing. */
  author_of?: { definition: string; unavailable: boolean }
}

export type DecisionRequest = {
  /** canonical `<module>:<Action>` */
  action: string
  /** the srn names of one resource: by id, and by path (or parent) where it has one */
  names: string[]
  /** type segment of the target, for ResourceType conditions */
  type: string
  /** tags of the resource; several sets when each of them has to be allowed (stored and resulting, container and own) */
  resourceTags?: TagConditions | null | readonly (TagConditions | null)[]
  /** tags in the request body, on create and tag writes */
  requestTags?: TagConditions
  facts: PrincipalFacts
}

/**
 * The full decision on one resource: every layer must allow, a Deny anywhere in a layer denies it. A resource with several
 * names is allowed by an Allow on any of them and denied by a Deny on any of them. With several tag sets every set must be
 * allowed. Names that are not `srn:` names are denied.
 */
export function decide(layers: readonly Layer[], request: DecisionRequest): boolean {
  if (layers.length === 0) return true
  const names = parseNames(request.names)
  return names !== null && layers.every(layer => layerDecides(layer, names, request))
}

/** The first layer that does not allow a request; null when all do. */
export function refusingLayer(layers: readonly Layer[], request: DecisionRequest): Layer | null {
  const names = parseNames(request.names)
  return layers.find(layer => names === null || !layerDecides(layer, names, request)) ?? null
}

const layerDecides = (layer: Layer, names: readonly NamePattern[], request: DecisionRequest): boolean =>
  tagSetsOf(request).every(tags => layerAllows(layer, request.action, names, request, tags))

/** The tag sets that a decision is about, one at least. */
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
 * Whether some resource somewhere could be allowed for this action. False gives the same 403 for every id, so an
 * unconditional Deny on everything counts too.
 */
export const couldAllow = (layers: readonly Layer[], action: string): boolean =>
  layers.every(layer => layerCouldAllow(layer, action))

/** @param projectId only resources of this project count */
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

/** Whether every layer has an Allow whose resource pattern can match something in the project, whatever its action. */
export function projectVisible(layers: readonly Layer[], projectId: string): boolean {
  return layers.every(
    layer =>
      layer.documents.every(document => document.valid) &&
      layer.documents.some(document =>
        document.statements.some(statement => !statement.deny && reaches(statement, projectId)),
      ),
  )
}
