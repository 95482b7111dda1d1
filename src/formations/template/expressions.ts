import { wirePath } from '#core/api/validate.ts'
import { ExactNumber } from '#core/base/exact-json.ts'

/** Expressions of templates: objects with exactly one key, a kind, whose value is a string. */

const KINDS = ['ref', 'param', 'sub', 'ref_attr', 'import'] as const
export type Expression = { kind: (typeof KINDS)[number]; text: string }

/** Names of resources and parameters. */
export const NAME = /^[A-Za-z][A-Za-z0-9_]{0,127}$/
const SUBSTITUTED = /\$\{([A-Za-z][A-Za-z0-9_]{0,127})\}/g

type Path = (string | number)[]

export function expressionOf(value: unknown): Expression | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null
  const keys = Object.keys(value)
  const [kind] = keys
  if (keys.length !== 1 || !(KINDS as readonly string[]).includes(kind)) return null
  const text = (value as Record<string, unknown>)[kind]
  return typeof text === 'string' ? { kind: kind as Expression['kind'], text } : null
}

/** Returns the names that a `sub` replaces, each time. Other placeholders, such as `${body.x}`, are unchanged. */
export const substitutedNames = (text: string): string[] => [...text.matchAll(SUBSTITUTED)].map(([, name]) => name)

/**
 * Returns the path of the expression with which a value has more than a maximum of expressions and names in `sub`
 * expressions; null if it has not more.
 */
export function findExcessExpression(value: unknown, max: number): string | null {
  const path: Path = []
  let count = 0
  const walk = (node: unknown): boolean => {
    if (typeof node !== 'object' || node === null) return false
    const expression = expressionOf(node)
    if (!expression) return someItem(node, path, walk)
    if (expression.kind === 'sub') for (const _ of expression.text.matchAll(SUBSTITUTED)) if (++count > max) return true
    return ++count > max
  }
  return walk(value) ? wirePath(path) : null
}

/** Whether a function is true for an item of an array or a value of an object; `path` ends with the index or key of it. */
function someItem(node: object, path: Path, test: (item: unknown) => boolean): boolean {
  const at = path.length
  for (const [key, item] of Object.entries(node)) {
    path[at] = Array.isArray(node) ? Number(key) : key
    if (test(item)) return true
  }
  path.length = at
  return false
}

export type LocatedExpression = { expression: Expression; path: string }

/** Returns every expression in a value, with its path below `at`. */
export function expressionsIn(value: unknown, at = ''): LocatedExpression[] {
  const found: LocatedExpression[] = []
  const path: Path = []
  const walk = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return
    const expression = expressionOf(node)
    if (expression) found.push({ expression, path: wirePath(path, at) })
    else mapItems(node, path, walk)
  }
  walk(value)
  return found
}

/** Maps the items of an array or the values of an object; `path` ends with the index or key during each call. */
function mapItems<Item>(node: object, path: Path, map: (item: unknown) => Item): Item[] | Record<string, Item> {
  const at = path.length
  const mapAt = (part: string | number, item: unknown): Item => {
    path[at] = part
    const mapped = map(item)
    path.length = at
    return mapped
  }
  if (Array.isArray(node)) return node.map((item, index) => mapAt(index, item))
  const mapped: Record<string, Item> = {}
  // A key `__proto__`, which assignment would take as the prototype, is refused before.
  for (const key of Object.keys(node)) mapped[key] = mapAt(key, (node as Record<string, unknown>)[key])
  return mapped
}

/** Meaning of a name: a text, `nothing` (a parameter that keeps its previous value), or `unknown` (not known yet). */
export type ExpressionMeaning = { text: string } | 'nothing' | 'unknown'

export type TemplateScope = (expression: Expression) => ExpressionMeaning

export type ResolvedValue = {
  /** The value, in which expressions without a known value are unresolved. */
  value: unknown
  /** Paths of the resolved expressions, below `at`. */
  texts: string[]
  /** Whether a part of the value is not known yet. */
  unknown: boolean
  /** Whether a part of the value is a parameter that keeps its previous value. */
  nothing: boolean
}

/** Resolves the expressions of a value. */
export function resolveValue(value: unknown, scope: TemplateScope, at = ''): ResolvedValue {
  const resolved: ResolvedValue = { value: null, texts: [], unknown: false, nothing: false }
  const path: Path = []
  const walk = (node: unknown): unknown => {
    if (typeof node !== 'object' || node === null || node instanceof ExactNumber) return node
    const expression = expressionOf(node)
    if (!expression) return mapItems(node, path, walk)
    const meaning = scope(expression)
    if (meaning === 'unknown') resolved.unknown = true
    else if (meaning === 'nothing') resolved.nothing = true
    else {
      resolved.texts.push(wirePath(path, at))
      return meaning.text
    }
    return node
  }
  resolved.value = walk(value)
  return resolved
}

/** Returns a scope for the meanings of names. In `sub`, a parameter takes precedence over a resource of the same name. */
export function scopeOf(meanings: {
  parameter(name: string): ExpressionMeaning | undefined
  resource(logicalId: string): ExpressionMeaning | undefined
  imported(text: string): ExpressionMeaning
  attribute(text: string): ExpressionMeaning
}): TemplateScope {
  const { parameter, resource, imported, attribute } = meanings
  const meaningOf = (name: string): ExpressionMeaning => parameter(name) ?? resource(name) ?? 'unknown'
  return ({ kind, text }) => {
    if (kind === 'ref') return resource(text) ?? 'unknown'
    if (kind === 'param') return parameter(text) ?? 'unknown'
    if (kind === 'import') return imported(text)
    if (kind === 'ref_attr') return attribute(text)
    const names = new Map(substitutedNames(text).map(name => [name, meaningOf(name)]))
    if ([...names.values()].includes('nothing')) return 'nothing'
    if ([...names.values()].includes('unknown')) return 'unknown'
    return { text: text.replace(SUBSTITUTED, (_, name: string) => (names.get(name) as { text: string }).text) }
  }
}
