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

/** Whether a field was declared as deprecated: without one, no schema is walked. */
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

type Io = 'input' | 'output'

/**
 * A schema without its arrays, alternatives and wrappers: its deprecations, and objects that it allows, each with the schemas of its
 * fields and of the fields that it does not name.
 */
type Level = { own: Deprecation[]; objects: { fields: Record<string, z.ZodType>; others: z.ZodType[] }[] }

const LEVELS = { input: new WeakMap<z.ZodType, Level>(), output: new WeakMap<z.ZodType, Level>() }

/** Definition of any kind of schema. */
const definitionOf = (schema: z.ZodType) => schema.def as unknown as Record<string, any>

/** Returns the schemas that describe the same value as a schema, or the items of it. */
function partsOf(schema: z.ZodType, io: Io): z.ZodType[] {
  const { type, in: from, out: to, options = [], items = [], ...def } = definitionOf(schema)
  if (schema instanceof z.ZodLazy) return [schema._zod.innerType as z.ZodType]
  if (type === 'pipe') return [io === 'output' || definitionOf(from).type === 'transform' ? to : from]
  return [def.element, def.innerType, def.left, def.right, def.rest, ...options, ...items].filter(Boolean)
}

function levelOf(schema: z.ZodType, io: Io): Level {
  const known = LEVELS[io].get(schema)
  if (known) return known
  const level: Level = { own: [], objects: [] }
  // Grows while it is walked.
  const parts = new Set([schema])
  for (const part of parts) {
    const deprecation = part.meta()?.[DEPRECATED]
    if (deprecation) level.own.push(deprecation as Deprecation)
    const { shape, catchall, valueType } = definitionOf(part)
    if (shape || catchall || valueType)
      level.objects.push({ fields: { ...shape }, others: [catchall, valueType].filter(Boolean) })
    for (const each of partsOf(part, io)) parts.add(each)
  }
  LEVELS[io].set(schema, level)
  return level
}

/** Returns the deprecations of a schema and of all fields below it. */
function deprecationsIn(schema: z.ZodType | null, io: Io): Deprecation[] {
  const schemas = new Set(schema ? [schema] : [])
  for (const each of schemas) {
    for (const { fields, others } of levelOf(each, io).objects)
      for (const field of [...Object.values(fields), ...others]) schemas.add(field)
  }
  return [...schemas].flatMap(each => levelOf(each, io).own)
}

/** Returns the deprecations of the fields that a value has. Reads each part of the value once. */
function deprecationsOf(sent: unknown, schema: z.ZodType): Deprecation[] {
  const found: Deprecation[] = []
  const open: { value: unknown; schemas: ReadonlySet<z.ZodType> }[] = [{ value: sent, schemas: new Set([schema]) }]
  for (const { value, schemas } of open) {
    if (typeof value !== 'object' || value === null || schemas.size === 0) continue
    if (Array.isArray(value)) {
      for (const each of value) if (typeof each === 'object') open.push({ value: each, schemas })
      continue
    }
    const objects = [...schemas].flatMap(each => levelOf(each, 'input').objects)
    for (const [name, each] of Object.entries(value)) {
      const named = new Set(
        objects.flatMap(({ fields, others }) => (Object.hasOwn(fields, name) ? fields[name] : others)),
      )
      for (const field of named) found.push(...levelOf(field, 'input').own)
      open.push({ value: each, schemas: named })
    }
  }
  return found
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
 * of its responses, or of a field that the request sends. Null if nothing of the operation is deprecated. Walks its schemas, once
 * for all operations, if any field is deprecated.
 */
export function deprecationDates({
  deprecated,
  query,
  body,
  answers,
}: Parts): ((sent: { query: unknown; body: unknown }) => string | null) | null {
  if (!hasFields && !deprecated) return null
  const answered = hasFields ? Object.values(answers).flatMap(each => deprecationsIn(each, 'output')) : []
  const always = [...(deprecated ? [deprecated] : []), ...answered]
  const sendable = Object.entries({ query, body }).flatMap(([part, schema]) =>
    hasFields && schema && deprecationsIn(schema, 'input').length > 0 ? { part: part as 'query' | 'body', schema } : [],
  )
  if (always.length + sendable.length === 0) return null
  return sent => {
    const concerned = sendable.flatMap(({ part, schema }) => deprecationsOf(sent[part], schema))
    return [...always, ...concerned].map(({ date }) => date).sort()[0] ?? null
  }
}
