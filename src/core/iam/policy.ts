import { truncateChars } from '../api/storable-text.ts'
import { compileGlob, type Glob } from './glob.ts'
import { canonicalActions, canonicalType, type KnownActions, splitName } from './names.ts'

/**
 * Policy documents: the check when one is written and the form it is evaluated in. Both come from one reader, so what is
 * accepted and what is matched cannot drift apart.
 */

/** What a document may name; functions that take one read nothing else. */
export type Catalogue = KnownActions & {
  /** resource types, singular snake_case */
  types: Set<string>
  /** registered event names and their aliases */
  eventNames: string[]
  /** resource types of the event registry, also valid in `resource` */
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

/** One resource pattern; null in a segment means "any". `id` and `path` are never both set. */
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

/** One key of one operator. `negated` operators also hold when the key is missing. */
export type Condition = {
  readonly source: ConditionSource
  /** tag key, for the two tag sources */
  readonly tag: string
  readonly negated: boolean
  readonly equals: readonly string[]
  readonly globs: readonly Glob[]
}

export type CompiledStatement = {
  /** position in the document as it was written */
  readonly index: number
  readonly deny: boolean
  /** `*`: every action and every event */
  readonly everyAction: boolean
  /** canonical action names and event names */
  readonly exact: ReadonlySet<string>
  /** `m:` for `m:*`, `m:Get` for `m:Get*`, `files.` for `files.*` */
  readonly prefixes: readonly string[]
  /** null: every resource */
  readonly resources: readonly ResourcePattern[] | null
  readonly conditions: readonly Condition[]
}

/** `valid: false` denies everything in its layer; the caller logs it. */
export type CompiledDocument = { readonly valid: boolean; readonly statements: readonly CompiledStatement[] }

const MAX_DOCUMENT_BYTES = 64 * 1024
const MAX_ITEMS = 100
const MAX_CONDITION_VALUES = 50
const MAX_EVENT_PATTERN = 128
/** Problems reported for one document. */
const MAX_PROBLEMS = 100

const OPERATORS = new Map<string, { negated: boolean; glob: boolean }>([
  ['StringEquals', { negated: false, glob: false }],
  ['StringNotEquals', { negated: true, glob: false }],
  ['StringLike', { negated: false, glob: true }],
  ['StringNotLike', { negated: true, glob: true }],
])

const PLAIN_KEYS = new Set(['ResourceType', 'PrincipalId', 'PrincipalType', 'CredentialType'])

/**
 * Checks a document as its author wrote it.
 * @param path wire name of the field that holds the document
 * @returns problems, at most 100, empty when the document may be stored. Codes: UNKNOWN_ACTION, INVALID_RESOURCE,
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
 * Compiles a stored document. Names that the catalogue no longer has simply never match; an unknown condition operator or
 * key makes an Allow not match and a Deny match; a document that does not parse is `valid: false`. Size limits are an
 * authoring matter and not applied.
 * @param catalogue decides which module an `agents:<Name>` alias means, see canonicalActions
 */
export function compileDocument(document: unknown, catalogue?: KnownActions): CompiledDocument {
  const reader = new Reader(null, catalogue)
  const statements = reader.document(document, '')
  return reader.problems.length > 0 ? { valid: false, statements: [] } : { valid: true, statements }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function quoted(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value)
  return text.length > 100 ? `${truncateChars(text, 100)}...` : text
}

/** Reads a document: with a catalogue it checks the vocabulary and the limits too, without one only the grammar. */
class Reader {
  readonly problems: PolicyProblem[] = []
  readonly catalogue: Catalogue | null
  readonly aliases: KnownActions | undefined

  constructor(catalogue: Catalogue | null, aliases: KnownActions | undefined = catalogue ?? undefined) {
    this.catalogue = catalogue
    this.aliases = aliases
  }

  problem(code: string, path: string, message: string): void {
    if (this.problems.length < MAX_PROBLEMS) this.problems.push({ code, path, message })
  }

  keys(value: Record<string, unknown>, allowed: string[], path: string): void {
    for (const key of Object.keys(value))
      if (!allowed.includes(key))
        this.problem('UNKNOWN_PROPERTY', path ? `${path}.${key}` : key, 'is not a known property')
  }

  /** A non-empty array within the authoring limit; null (and a problem) otherwise. */
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
    // An empty list grants nothing, so it is refused when written and harmless when stored.
    if (!this.catalogue && Array.isArray(document.statement) && document.statement.length === 0) return []
    const statements: CompiledStatement[] = []
    for (const [index, statement] of (this.list(document.statement, at, MAX_ITEMS) ?? []).entries()) {
      const compiled = this.statement(statement, index, `${at}[${index}]`)
      if (compiled) statements.push(compiled)
    }
    return statements
  }

  /** null for a statement that can never match, and for one with problems. */
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
          else if (!this.knowsType(pattern.type))
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

  /** Sorts one action pattern into the sets; false when its grammar or, with a catalogue, its name is unknown. */
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
    const canonical = canonicalActions(action, this.aliases)
    if (this.catalogue && !canonical.every(each => this.knowsAction(each))) return false
    for (const each of canonical) exact.add(each)
    return true
  }

  /** Event patterns `<prefix>.<verb>` and `<prefix>.*`; their dot keeps them apart from every action. */
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

  knowsAction(action: string): boolean {
    const colon = action.indexOf(':')
    return this.catalogue?.actions.get(action.slice(0, colon))?.has(action.slice(colon + 1)) ?? false
  }

  knowsType(type: string | null): boolean {
    return type === null || !this.catalogue || this.catalogue.types.has(type) || this.catalogue.eventTypes.has(type)
  }

  /** Collects the conditions; false when an operator or key is unknown (a problem only at authoring). */
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

/** A resource pattern, or the text of what is wrong with it. Split at the first three colons: ids and paths may hold colons. */
function parseResource(resource: string): ResourcePattern | string {
  const name = splitName(resource)
  if (!name) return 'must be * or srn:<project>:<type>:<id>'
  const { project, type, id } = name
  if (!project || (project !== '*' && /[*?]/.test(project))) return 'project must be * or an exact id'
  if (!type || (type !== '*' && /[^a-z0-9_-]/.test(type))) return 'type must be * or a resource type'
  if (!id) return 'id must be *, an exact id or a path pattern'
  const path = id.startsWith('/')
  if (!path && id !== '*' && /[*?]/.test(id)) return 'wildcards in an id are only possible in a path pattern'
  return {
    project: project === '*' ? null : project,
    type: type === '*' ? null : canonicalType(type),
    id: path || id === '*' ? null : id,
    path: path ? compileGlob(id) : null,
  }
}

/** The word before the colon is a vendor prefix (2-16 lower-case letters) and carries no meaning. */
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
