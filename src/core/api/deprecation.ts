import { z } from 'zod'

/**
 * A declared deprecation of an operation or a field: the release and date since which it holds, and the release that removes it,
 * at least two minor releases later.
 */
export type Deprecation = { since: string; date: string; removal: string }

/** Keyword of a deprecated operation or field in schemas, with its deprecation. */
export const DEPRECATED = 'x-deprecated'

/** Minor releases, from the first one on, in which clients are informed. */
const MINORS = 2

/** Whether a field was declared as deprecated: without one, no schema is searched. */
let hasFields = false

/** @throws Error for a removal that comes too early */
function requireNotice(name: string, { since, date, removal }: Deprecation): void {
  const [[major, minor], [removalMajor, removalMinor]] = [since, removal].map(each => each.split('.').map(Number))
  const isLate = removalMajor > major || (removalMajor === major && removalMinor >= minor + MINORS)
  if (!isLate || Number.isNaN(Date.parse(date)))
    throw new Error(`${name} is deprecated since ${since} (${date}) and removed by ${removal}: too early`)
}

/** Returns a description with the deprecation. */
const withNotice = (description: string | undefined, { since, removal }: Deprecation): string =>
  `${description ? `${description.replace(/\.?$/, '.')} ` : ''}Deprecated since ${since}, removed by ${removal}.`

/** Returns a deprecated field. Its description and other metadata are declared before. */
export function deprecatedField<T extends z.ZodType>(field: T, deprecation: Deprecation): T {
  requireNotice(field.description ?? 'a field', deprecation)
  hasFields = true
  const description = withNotice(field.description, deprecation)
  return field.meta({ ...field.meta(), description, deprecated: true, [DEPRECATED]: deprecation }) as T
}

/** Returns the description of an operation, with its deprecation. */
export function describedOperation(
  id: string,
  description: string | undefined,
  deprecation: Deprecation | undefined,
): string | undefined {
  if (!deprecation) return description
  requireNotice(`operation ${id}`, deprecation)
  return withNotice(description, deprecation)
}

type Field = { path: readonly string[]; deprecation: Deprecation }
type Node = Record<string, any>

/** Returns the deprecated fields of a schema; their paths pass through arrays. */
function fieldsIn(schema: z.ZodType | null, io: 'input' | 'output'): Field[] {
  if (schema === null) return []
  const root = z.toJSONSchema(schema, { io, unrepresentable: 'any' }) as Node
  const walk = (node: Node, path: readonly string[], within: readonly string[]): Field[] => {
    const { $ref, properties = {}, items = [], anyOf = [], oneOf = [], allOf = [] } = node
    const own: Field[] = node[DEPRECATED] ? [{ path, deprecation: node[DEPRECATED] }] : []
    const isNew = typeof $ref === 'string' && $ref.startsWith('#/$defs/') && !within.includes($ref)
    const target = isNew ? walk(root.$defs?.[$ref.slice('#/$defs/'.length)] ?? {}, path, [...within, $ref]) : []
    const parts = [items, anyOf, oneOf, allOf].flat().filter(each => typeof each === 'object')
    return [
      ...own,
      ...target,
      ...parts.flatMap(each => walk(each, path, within)),
      ...Object.entries<Node>(properties).flatMap(([name, each]) => walk(each, [...path, name], within)),
    ]
  }
  return walk(root, [], [])
}

/** Whether a value has a field. */
function hasField(value: unknown, [name, ...rest]: readonly string[]): boolean {
  if (Array.isArray(value)) return value.some(each => hasField(each, [name, ...rest]))
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return false
  return rest.length === 0 || hasField((value as Node)[name], rest)
}

/** Parts of an operation that may be deprecated. */
type Parts = {
  deprecated: Deprecation | null
  query: z.ZodType | null
  body: z.ZodType | null
  answers: Record<number, z.ZodType | null>
}

/**
 * Returns the function that returns the date of the earliest deprecation which concerns a request: of the operation, of a field
 * of its responses, or of a field that the request sends. Null if nothing of the operation is deprecated. Converts its schemas,
 * which takes some milliseconds.
 */
export function deprecationDates({
  deprecated,
  query,
  body,
  answers,
}: Parts): ((sent: { query: unknown; body: unknown }) => string | null) | null {
  if (!hasFields && !deprecated) return null
  const answered = Object.values(answers).flatMap(each => fieldsIn(each, 'output'))
  const always = [...(deprecated ? [deprecated] : []), ...answered.map(({ deprecation }) => deprecation)]
  const sendable = { query: fieldsIn(query, 'input'), body: fieldsIn(body, 'input') }
  if (always.length + sendable.query.length + sendable.body.length === 0) return null
  return sent => {
    const concerned = (['query', 'body'] as const).flatMap(part =>
      sendable[part].filter(({ path }) => hasField(sent[part], path)).map(({ deprecation }) => deprecation),
    )
    return [...always, ...concerned].map(({ date }) => date).sort()[0] ?? null
  }
}
