import { wirePath } from '../../core/api/validate.ts'

/** Expressions of templates: objects with exactly one key of these, whose value is a text. */

const KINDS = ['ref', 'param', 'sub', 'ref_attr', 'import'] as const
export type Expression = { kind: (typeof KINDS)[number]; text: string }

/** Names of resources and parameters. */
export const NAME = /^[A-Za-z][A-Za-z0-9_]{0,127}$/
const SUBSTITUTED = /\$\{([A-Za-z][A-Za-z0-9_]{0,127})\}/g

type Path = readonly (string | number)[]

export function expressionOf(value: unknown): Expression | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null
  const [kind, ...others] = Object.keys(value)
  if (others.length > 0 || !(KINDS as readonly (string | undefined)[]).includes(kind)) return null
  const text = (value as Record<string, unknown>)[kind]
  return typeof text === 'string' ? { kind: kind as Expression['kind'], text } : null
}

/** The names that a `sub` replaces. What is no name, such as `${body.x}`, stays as it is. */
export const namesIn = (text: string): string[] => [...text.matchAll(SUBSTITUTED)].map(([, name]) => name)

export type Found = { expression: Expression; path: string }

/** Every expression in a value, with its path below `at`. */
export function expressionsIn(value: unknown, at = ''): Found[] {
  const found: Found[] = []
  const walk = (node: unknown, path: Path): void => {
    if (typeof node !== 'object' || node === null) return
    const expression = expressionOf(node)
    if (expression) found.push({ expression, path: wirePath(path, at) })
    else if (Array.isArray(node)) for (const [index, item] of node.entries()) walk(item, [...path, index])
    else for (const [key, item] of Object.entries(node)) walk(item, [...path, key])
  }
  walk(value, [])
  return found
}

/** What a name stands for: a text, nothing (a parameter whose value the caller left as it was), or not known yet. */
export type ExpressionMeaning = { text: string } | 'nothing' | 'unknown'

export type TemplateScope = (expression: Expression) => ExpressionMeaning

export type ResolvedValue = {
  /** The value, in which expressions that are not known stand as they were written. */
  value: unknown
  /** Paths of the texts that expressions gave, below `at`. */
  texts: string[]
  /** Whether some part is not known yet, and whether some part resolves to nothing. */
  unknown: boolean
  nothing: boolean
}

/** A value with its expressions resolved. */
export function resolveValue(value: unknown, scope: TemplateScope, at = ''): ResolvedValue {
  const resolved: ResolvedValue = { value: null, texts: [], unknown: false, nothing: false }
  const walk = (node: unknown, path: Path): unknown => {
    if (typeof node !== 'object' || node === null) return node
    const expression = expressionOf(node)
    if (!expression) {
      if (Array.isArray(node)) return node.map((item, index) => walk(item, [...path, index]))
      // Own properties of any name: one may be called like what every object has.
      return Object.fromEntries(Object.entries(node).map(([key, item]) => [key, walk(item, [...path, key])]))
    }
    const meaning = scope(expression)
    if (meaning === 'unknown') resolved.unknown = true
    else if (meaning === 'nothing') resolved.nothing = true
    else {
      resolved.texts.push(wirePath(path, at))
      return meaning.text
    }
    return node
  }
  resolved.value = walk(value, [])
  return resolved
}

/** A scope out of what single names mean: `sub` replaces each of its names, a parameter before a resource. */
export function scopeOf(meanings: {
  parameter(name: string): ExpressionMeaning | undefined
  resource(logicalId: string): ExpressionMeaning | undefined
  imported(text: string): ExpressionMeaning
  attribute(text: string): ExpressionMeaning
}): TemplateScope {
  const { parameter, resource, imported, attribute } = meanings
  const named = (name: string): ExpressionMeaning => parameter(name) ?? resource(name) ?? 'unknown'
  return ({ kind, text }) => {
    if (kind === 'ref') return resource(text) ?? 'unknown'
    if (kind === 'param') return parameter(text) ?? 'unknown'
    if (kind === 'import') return imported(text)
    if (kind === 'ref_attr') return attribute(text)
    const names = new Map(namesIn(text).map(name => [name, named(name)]))
    if ([...names.values()].includes('nothing')) return 'nothing'
    if ([...names.values()].includes('unknown')) return 'unknown'
    return { text: text.replace(SUBSTITUTED, (_, name: string) => (names.get(name) as { text: string }).text) }
  }
}
