import { isObject } from '../base/exact-json.ts'
import { truncateChars } from '../base/storable-text.ts'
import { compileGlob, type Glob } from './glob.ts'
import { canonicalActions, canonicalType, type KnownActions, splitName } from './names.ts'

/**
 * Policy documents: validation on write, and compilation for evaluation. Both use the same reader, so that validation and
 * matching are consistent.
 */

/** The names that a document may contain. */
export type Catalogue = KnownActions & {
  /** Resource types, singular snake_case. */
  types: Set<string>
  /** Event names and their aliases. */
  eventNames: string[]
  /** Resource types of events, also valid in `resource`. */
  eventTypes: Set<string>
}

export type PolicyStatement = {
  effect: 'Allow' | 'Deny'
  action: string[]
  resource?: string[]
  condition?: Record<string, Record<string, string | string[]>>
}

export type PolicyDocument = { statement: PolicyStatement[] }

export type PolicyProblem = { code: string; path: string; message: string }

/** A resource pattern; null in a segment matches any value. `id` and `path` are never both set. */
export type ResourcePattern = {
  readonly project: string | null
  readonly type: string | null
  readonly id: string | null
  readonly path: Glob | null
}

export type ConditionSource =
  | 'ResourceTag'
  | 'RequestTag'
  | 'ResourceType'
  | 'PrincipalId'
  | 'PrincipalType'
  | 'CredentialType'

/** A condition on one key. `negated` operators are also true if the key is missing. */
export type Condition = {
  readonly source: ConditionSource
  /** Tag key, for the two tag sources. */
  readonly tag: string
  readonly negated: boolean
  readonly equals: readonly string[]
  readonly globs: readonly Glob[]
}

export type CompiledStatement = {
  /** Index in the original document. */
  readonly index: number
  readonly deny: boolean
  /** `*`: all actions and events. */
  readonly everyAction: boolean
  /** Canonical action names, and event names. */
  readonly exact: ReadonlySet<string>
  /** `m:` for `m:*`, `m:Get` for `m:Get*`, `files.` for `files.*`. */
  readonly prefixes: readonly string[]
  /** Null: all resources. */
  readonly resources: readonly ResourcePattern[] | null
  readonly conditions: readonly Condition[]
}

/** A compiled document. `valid: false` denies everything in its layer; the caller logs it. */
export type CompiledDocument = { readonly valid: boolean; readonly statements: readonly CompiledStatement[] }

const MAX_DOCUMENT_BYTES = 64 * 1024
const MAX_ITEMS = 100
const MAX_CONDITION_VALUES = 50
const MAX_EVENT_PATTERN = 128
/** Maximum problems reported per document. */
const MAX_PROBLEMS = 100

const OPERATORS = new Map<string, { negated: boolean; glob: boolean }>([
  ['StringEquals', { negated: false, glob: false }],
  ['StringNotEquals', { negated: true, glob: false }],
  ['StringLike', { negated: false, glob: true }],
  ['StringNotLike', { negated: true, glob: true }],
])

const PLAIN_KEYS = new Set(['ResourceType', 'PrincipalId', 'PrincipalType', 'CredentialType'])

/**
 * Validates a document on write.
 * @param path wire name of the field with the document
 * @returns at most 100 problems; none if the document may be stored. Codes: UNKNOWN_ACTION, INVALID_RESOURCE,
 *   INVALID_EFFECT, INVALID_CONDITION, INVALID_TYPE, UNKNOWN_PROPERTY, TOO_SMALL, TOO_LARGE
 */
export function checkPolicyDocument(document: unknown, catalogue: Catalogue, path = 'document'): PolicyProblem[] {
  const reader = new Reader(catalogue)
  if (Buffer.byteLength(JSON.stringify(document) ?? '') > MAX_DOCUMENT_BYTES)
    return [{ code: 'TOO_LARGE', path, message: `must be at most ${MAX_DOCUMENT_BYTES} bytes` }]
  reader.document(document, path)
  return reader.problems
}

/**
 * Compiles a stored document. Names removed from the catalogue never match. A statement with an unknown condition operator or
 * key never matches if it is an Allow, and matches without conditions if it is a Deny. An unparsable document is
 * `valid: false`. Size limits apply only to writes.
 */
export function compileDocument(document: unknown): CompiledDocument {
  const reader = new Reader(null)
  const statements = reader.document(document, '')
  return reader.problems.length > 0 ? { valid: false, statements: [] } : { valid: true, statements }
}

function quoted(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value)
  return text.length > 100 ? `${truncateChars(text, 100)}...` : text
}

/** Reads a document. With a catalogue, names and limits are validated; without one, only the grammar. */
class Reader {
  readonly problems: PolicyProblem[] = []
  readonly catalogue: Catalogue | null

  constructor(catalogue: Catalogue | null) {
    this.catalogue = catalogue
  }

  problem(code: string, path: string, message: string): void {
    if (this.problems.length < MAX_PROBLEMS) this.problems.push({ code, path, message })
  }

  keys(value: Record<string, unknown>, allowed: string[], path: string): void {
    for (const key of Object.keys(value))
      if (!allowed.includes(key))
        this.problem('UNKNOWN_PROPERTY', path ? `${path}.${key}` : key, 'is not a known property')
  }

  /** Returns an array within the limit for writes; otherwise reports a problem and returns null. */
  list(value: unknown, path: string, max: number): unknown[] | null {
    if (!Array.isArray(value)) {
      this.problem('INVALID_TYPE', path, 'must be an array')
      return null
    }
    if (value.length === 0) this.problem('TOO_SMALL', path, 'must not be empty')
    if (this.catalogue && value.length > max) {
      this.problem('TOO_LARGE', path, `must have at most ${max} items`)
      return null
    }
    return value
  }

  document(document: unknown, path: string): CompiledStatement[] {
    if (!isObject(document)) {
      this.problem('INVALID_TYPE', path, 'must be an object')
      return []
    }
    this.keys(document, ['statement'], path)
    const at = `${path}.statement`
    // An empty list grants nothing: refused on write, accepted if stored.
    if (!this.catalogue && Array.isArray(document.statement) && document.statement.length === 0) return []
    const statements: CompiledStatement[] = []
    for (const [index, statement] of (this.list(document.statement, at, MAX_ITEMS) ?? []).entries()) {
      const compiled = this.statement(statement, index, `${at}[${index}]`)
      if (compiled) statements.push(compiled)
    }
    return statements
  }

  /** Compiles a statement; null if it can never match or is invalid. */
  statement(statement: unknown, index: number, path: string): CompiledStatement | null {
    if (!isObject(statement)) {
      this.problem('INVALID_TYPE', path, 'must be an object')
      return null
    }
    this.keys(statement, ['effect', 'action', 'resource', 'condition'], path)
    if (statement.effect !== 'Allow' && statement.effect !== 'Deny')
      this.problem('INVALID_EFFECT', `${path}.effect`, 'must be Allow or Deny')
    const deny = statement.effect === 'Deny'

    const exact = new Set<string>()
    const prefixes: string[] = []
    let everyAction = false
    for (const [i, action] of (this.list(statement.action, `${path}.action`, MAX_ITEMS) ?? []).entries()) {
      const at = `${path}.action[${i}]`
      if (typeof action !== 'string') this.problem('INVALID_TYPE', at, 'must be a string')
      else if (action === '*') everyAction = true
      else if (!this.action(action, exact, prefixes))
        this.problem('UNKNOWN_ACTION', at, `${quoted(action)} is not an action of this deployment`)
    }

    let resources: ResourcePattern[] | null = null
    if (statement.resource !== undefined) {
      resources = []
      let everyResource = false
      for (const [i, resource] of (this.list(statement.resource, `${path}.resource`, MAX_ITEMS) ?? []).entries()) {
        const at = `${path}.resource[${i}]`
        if (typeof resource !== 'string') this.problem('INVALID_TYPE', at, 'must be a string')
        else if (resource === '*') everyResource = true
        else {
          const pattern = parseResource(resource)
          if (typeof pattern === 'string') this.problem('INVALID_RESOURCE', at, pattern)
          else if (!this.hasType(pattern.type))
            this.problem('INVALID_RESOURCE', at, `${quoted(pattern.type)} is not a resource type`)
          else resources.push(pattern)
        }
      }
      if (everyResource || resources.some(r => !r.project && !r.type && r.id === null && !r.path)) resources = null
    }

    const conditions: Condition[] = []
    let unknown = false
    if (statement.condition !== undefined)
      unknown = !this.conditions(statement.condition, conditions, `${path}.condition`)
    if (unknown && !deny) return null
    return { index, deny, everyAction, exact, prefixes, resources, conditions: unknown ? [] : conditions }
  }

  /** Adds an action pattern to the sets; returns false if it is malformed or, with a catalogue, unknown. */
  action(action: string, exact: Set<string>, prefixes: string[]): boolean {
    const colon = action.indexOf(':')
    if (colon < 0) return this.event(action, exact, prefixes)
    const module = action.slice(0, colon)
    const wildcard = action.endsWith('*')
    const name = action.slice(colon + 1, wildcard ? -1 : undefined)
    if (!/^[a-z0-9_-]+$/.test(module) || !/^[A-Za-z0-9]*$/.test(name) || (!wildcard && name === '')) return false
    if (wildcard) {
      const names = this.catalogue?.actions.get(module)
      if (this.catalogue && (!names || ![...names].some(each => each.startsWith(name)))) return false
      prefixes.push(`${module}:${name}`)
      return true
    }
    const canonical = canonicalActions(action, this.catalogue ?? undefined)
    if (this.catalogue && !canonical.every(each => this.hasAction(each))) return false
    for (const each of canonical) exact.add(each)
    return true
  }

  /** Adds an event pattern `<prefix>.<verb>` or `<prefix>.*`, which differs from actions by its dot. */
  event(pattern: string, exact: Set<string>, prefixes: string[]): boolean {
    if (pattern.length > MAX_EVENT_PATTERN || !/^[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?$/.test(pattern)) return false
    if (!pattern.includes('.')) return false
    const names = this.catalogue?.eventNames
    if (pattern.endsWith('*')) {
      const prefix = pattern.slice(0, -1)
      if (names && !names.some(name => name.startsWith(prefix))) return false
      prefixes.push(prefix)
    } else {
      if (names && !names.includes(pattern)) return false
      exact.add(pattern)
    }
    return true
  }

  hasAction(action: string): boolean {
    const colon = action.indexOf(':')
    return this.catalogue?.actions.get(action.slice(0, colon))?.has(action.slice(colon + 1)) ?? false
  }

  hasType(type: string | null): boolean {
    return type === null || !this.catalogue || this.catalogue.types.has(type) || this.catalogue.eventTypes.has(type)
  }

  /** Collects conditions; returns false if an operator or key is unknown, which is a problem only on write. */
  conditions(condition: unknown, into: Condition[], path: string): boolean {
    if (!isObject(condition)) {
      this.problem('INVALID_CONDITION', path, 'must be an object of operators')
      return true
    }
    let known = true
    for (const [operator, keys] of Object.entries(condition)) {
      const meaning = OPERATORS.get(operator)
      const at = `${path}.${operator}`
      if (!meaning) {
        known = false
        if (this.catalogue) this.problem('INVALID_CONDITION', at, `${quoted(operator)} is not an operator`)
        continue
      }
      if (!isObject(keys)) {
        this.problem('INVALID_CONDITION', at, 'must be an object of condition keys')
        continue
      }
      for (const [key, value] of Object.entries(keys)) {
        const subject = parseConditionKey(key)
        if (!subject) {
          known = false
          if (this.catalogue) this.problem('INVALID_CONDITION', `${at}.${key}`, `${quoted(key)} is not a condition key`)
          continue
        }
        const values = typeof value === 'string' ? [value] : value
        const usable = Array.isArray(values) && values.length > 0 && values.every(each => typeof each === 'string')
        if (!usable || (this.catalogue && values.length > MAX_CONDITION_VALUES)) {
          this.problem('INVALID_CONDITION', `${at}.${key}`, `must be a string or 1-${MAX_CONDITION_VALUES} strings`)
          continue
        }
        into.push({
          ...subject,
          negated: meaning.negated,
          equals: meaning.glob ? [] : values,
          globs: meaning.glob ? values.map(compileGlob) : [],
        })
      }
    }
    return known
  }
}

/** Parses a resource pattern, or returns its problem. Splits at the first three colons: ids and paths may contain colons. */
function parseResource(resource: string): ResourcePattern | string {
  const name = splitName(resource)
  if (!name) return 'must be * or srn:<project>:<type>:<id>'
  const { project, type, id } = name
  if (!project || (project !== '*' && /[*?]/.test(project))) return 'must have * or an exact id as project'
  if (!type || (type !== '*' && /[^a-z0-9_-]/.test(type))) return 'must have * or a resource type as type'
  if (!id) return 'must have *, an exact id or a path pattern as id'
  const path = id.startsWith('/')
  if (!path && id !== '*' && /[*?]/.test(id)) return 'must not have wildcards in an id that is not a path pattern'
  return {
    project: project === '*' ? null : project,
    type: type === '*' ? null : canonicalType(type),
    id: path || id === '*' ? null : id,
    path: path ? compileGlob(id) : null,
  }
}

/** Parses a condition key. The vendor prefix before the colon (2-16 lower-case letters) is ignored. */
function parseConditionKey(key: string): { source: ConditionSource; tag: string } | null {
  const colon = key.indexOf(':')
  if (!/^[a-z]{2,16}$/.test(key.slice(0, Math.max(colon, 0)))) return null
  const rest = key.slice(colon + 1)
  if (PLAIN_KEYS.has(rest)) return { source: rest as ConditionSource, tag: '' }
  const slash = rest.indexOf('/')
  const source = rest.slice(0, Math.max(slash, 0))
  const tag = rest.slice(slash + 1)
  if ((source === 'ResourceTag' || source === 'RequestTag') && tag !== '') return { source, tag }
  return null
}
