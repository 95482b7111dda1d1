import { globMatches } from './glob.ts'
import { splitName } from './names.ts'
import type { CompiledStatement, Condition, ResourcePattern } from './policy.ts'

/** Matching of a policy statement against a request. */

export type TagConditions = Readonly<Record<string, string>>

/** Values of principal conditions. */
export type PrincipalFacts = {
  principal_id: string
  principal_type: 'user' | 'api_key'
  credential_type: 'user' | 'api_key' | 'oauth_token' | 'run'
}

/** The segments of a resource name, `srn:<project>:<type>:<id>`. */
export type NamePattern = { project: string; type: string; id: string }

/** Values of conditions, except the tags of the resource. Without `facts`, principal keys are missing. */
export type MatchContext = { type: string; requestTags?: TagConditions; facts: PrincipalFacts | null }

/** Parses resource names; null if one is invalid, on which nothing can be allowed. */
export function parseNames(names: readonly string[]): NamePattern[] | null {
  const parsed: NamePattern[] = []
  for (const name of names) {
    const segments = splitName(name)
    if (!segments) return null
    parsed.push(segments)
  }
  return parsed.length > 0 ? parsed : null
}

export function matchesAction(statement: CompiledStatement, action: string): boolean {
  if (statement.everyAction || statement.exact.has(action)) return true
  for (const prefix of statement.prefixes) if (action.startsWith(prefix)) return true
  return false
}

/** Whether a statement applies to an action on a resource with one or more names. */
export function statementMatches(
  statement: CompiledStatement,
  action: string,
  names: readonly NamePattern[],
  context: MatchContext,
  resourceTags: TagConditions | null | undefined,
): boolean {
  if (!matchesAction(statement, action) || !matchesResource(statement, names)) return false
  for (const condition of statement.conditions) {
    const value =
      condition.source === 'ResourceTag' ? tagValue(resourceTags, condition.tag) : constantValue(condition, context)
    if (!conditionHolds(condition, value)) return false
  }
  return true
}

function matchesResource(statement: CompiledStatement, names: readonly NamePattern[]): boolean {
  if (statement.resources === null) return true
  for (const pattern of statement.resources) for (const name of names) if (matchesName(pattern, name)) return true
  return false
}

function matchesName(pattern: ResourcePattern, name: NamePattern): boolean {
  if (pattern.project !== null && pattern.project !== name.project) return false
  if (pattern.type !== null && pattern.type !== name.type) return false
  if (pattern.path !== null) return name.id.startsWith('/') && globMatches(pattern.path, name.id)
  return pattern.id === null || pattern.id === name.id
}

function tagValue(tags: TagConditions | null | undefined, key: string): string | undefined {
  return tags && Object.hasOwn(tags, key) ? tags[key] : undefined
}

/** Returns the value of a condition key that does not depend on the resource's tags. */
export function constantValue(condition: Condition, context: MatchContext): string | undefined {
  switch (condition.source) {
    case 'RequestTag':
      return tagValue(context.requestTags, condition.tag)
    case 'ResourceType':
      return context.type
    case 'PrincipalId':
      return context.facts?.principal_id
    case 'PrincipalType':
      return context.facts?.principal_type
    case 'CredentialType':
      return context.facts?.credential_type
    default:
      return undefined
  }
}

/** Whether a condition is true for the value of its key; negated conditions are also true for a missing key. */
export function conditionHolds(condition: Condition, value: string | undefined): boolean {
  if (value === undefined) return condition.negated
  if (condition.equals.includes(value)) return !condition.negated
  for (const glob of condition.globs) if (globMatches(glob, value)) return !condition.negated
  return condition.negated
}
