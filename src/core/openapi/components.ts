import { z } from 'zod'
import { fieldDescription } from '../api/field-descriptions.ts'
import { referencedKind } from './referenced-kind.ts'

export type SchemaNode = Record<string, unknown>

const isObject = (value: unknown): value is SchemaNode =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const SCHEMAS = '#/components/schemas/'

/** Whether a schema keyword is redundant: a limit of every integer, or a pattern implied by the format. */
const isRedundant = (key: string, value: unknown, schema: SchemaNode): boolean =>
  (key === 'minimum' && value === Number.MIN_SAFE_INTEGER) ||
  (key === 'maximum' && value === Number.MAX_SAFE_INTEGER) ||
  (key === 'pattern' && typeof schema.format === 'string') ||
  (key === 'propertyNames' && isObject(value) && Object.keys(value).length === 1 && value.type === 'string')

/**
 * Collects the schema components of a document, each named schema once for input and output. Declared examples remain in
 * schemas as `example` until publishedComponents removes them.
 */
export class Components {
  readonly schemas: Record<string, SchemaNode> = {}
  readonly #converted = new WeakMap<z.ZodType, Partial<Record<'input' | 'output', SchemaNode>>>()

  /** Returns the JSON Schema of a zod type; a named type (`.meta({ id })`) becomes a component and a reference. */
  schema(type: z.ZodType, io: 'input' | 'output'): SchemaNode {
    const converted = this.#converted.get(type) ?? {}
    this.#converted.set(type, converted)
    converted[io] ??= this.#convert(type, io)
    return converted[io]
  }

  /** Adds a component unless its name exists, and returns a reference to it. */
  named(name: string, schema: SchemaNode): SchemaNode {
    this.schemas[name] ??= schema
    return { $ref: `${SCHEMAS}${name}` }
  }

  /** Resolves a reference to its schema; other schemas are returned unchanged. */
  resolve(schema: SchemaNode): SchemaNode {
    return typeof schema.$ref === 'string' && schema.$ref.startsWith(SCHEMAS)
      ? this.resolve({ ...this.schemas[schema.$ref.slice(SCHEMAS.length)] })
      : schema
  }

  #convert(type: z.ZodType, io: 'input' | 'output'): SchemaNode {
    const schema = z.toJSONSchema(type, {
      io,
      unrepresentable: 'any',
      reused: 'inline',
      target: 'draft-2020-12',
    }) as SchemaNode
    const { $schema: _draft, $defs = {}, ...root } = schema
    const definitions = $defs as Record<string, SchemaNode>
    // Inputs are described only at their declaration, from which tools also read them.
    const describe = (name: string, field: SchemaNode) =>
      io === 'output' && !isDescribed(field, definitions) ? fieldDescription(name) : null
    for (const [name, definition] of Object.entries(definitions)) this.named(name, tidy(definition, describe))
    const name = root.id as string | undefined
    const tidied = tidy(root, describe)
    return name ? this.named(name, tidied) : tidied
  }
}

/** Whether a schema has a description, itself or in a schema it references. */
function isDescribed(schema: SchemaNode, definitions: Record<string, SchemaNode>): boolean {
  const { description, $ref, anyOf, oneOf, allOf } = schema
  const target = typeof $ref === 'string' ? definitions[$ref.slice($ref.lastIndexOf('/') + 1)] : undefined
  const parts = [target, anyOf, oneOf, allOf].flat() as (SchemaNode | undefined)[]
  return description !== undefined || parts.some(part => part !== undefined && isDescribed(part, definitions))
}

/** Keywords of a schema in their order; others follow. */
const KEYWORDS = [
  '$ref',
  'type',
  'format',
  'enum',
  'const',
  'anyOf',
  'oneOf',
  'allOf',
  'minLength',
  'maxLength',
  'minimum',
  'maximum',
  'pattern',
  'properties',
  'required',
  'additionalProperties',
  'items',
  'minItems',
  'maxItems',
  'propertyNames',
  'default',
  'description',
]

const rankOf = (key: string): number => (KEYWORDS.includes(key) ? KEYWORDS.indexOf(key) : KEYWORDS.length)

/** Returns the keywords of a schema in one order: equal schemas are equal texts, and the document compresses by 1% more. */
const orderedKeywords = (schema: SchemaNode): [string, unknown][] =>
  Object.entries(schema).sort(([one], [other]) => rankOf(one) - rankOf(other))

/**
 * Returns a schema in the form of the document: with references to components, without ids and redundant keywords, and
 * with the kind that fields of IDs refer to. `describe` provides descriptions of fields without one.
 */
function tidy(schema: SchemaNode, describe: (name: string, field: SchemaNode) => string | null): SchemaNode {
  const field = (name: string, value: unknown): unknown => {
    const description = isObject(value) ? describe(name, value) : null
    const walked = walk(value, false)
    if (!isObject(walked)) return walked
    const kind = referencedKind(name)
    return {
      ...walked,
      ...(description ? { description } : {}),
      // Nearly every schema has the project.
      ...(kind && kind.name !== 'project' ? { 'x-refers': kind.name } : {}),
    }
  }
  const walk = (node: unknown, isMap: boolean): unknown => {
    if (Array.isArray(node)) return node.map(each => walk(each, false))
    if (!isObject(node)) return node
    const out: SchemaNode = {}
    for (const [key, value] of isMap ? Object.entries(node) : orderedKeywords(node)) {
      if (isMap) out[key] = field(key, value)
      else if (key === 'id' && typeof value === 'string') continue
      else if (['example', 'default', 'const', 'enum', 'examples'].includes(key)) out[key] = value
      else if (key === '$ref' && typeof value === 'string') out[key] = value.replace('#/$defs/', SCHEMAS)
      else if (!isRedundant(key, value, node)) out[key] = walk(value, key === 'properties')
    }
    return out
  }
  return walk(schema, false) as SchemaNode
}

/** Returns a schema without `example` keywords. */
export function publishedComponents(schema: unknown, isMap = false): unknown {
  if (Array.isArray(schema)) return schema.map(each => publishedComponents(each))
  if (!isObject(schema)) return schema
  const out: SchemaNode = {}
  for (const [key, value] of Object.entries(schema)) {
    if (!isMap && key === 'example') continue
    out[key] =
      !isMap && ['default', 'const', 'enum'].includes(key) ? value : publishedComponents(value, key === 'properties')
  }
  return out
}

/** Minimum JSON length of a repeated schema to become a component. */
const MIN_SHARED_LENGTH = 120

const toPascal = (text: string): string =>
  text.replace(/(^|[^A-Za-z0-9]+)([A-Za-z0-9])/g, (_match, _gap, letter: string) => letter.toUpperCase())

/** Replaces repeated schemas by references to a component, named after its first occurrence. */
export function withoutRepeats(schemas: Record<string, SchemaNode>): Record<string, SchemaNode> {
  const counts = new Map<string, number>()
  const eachSchema = (value: unknown, isMap: boolean, visit: (schema: SchemaNode, text: string) => void): void => {
    if (Array.isArray(value)) for (const each of value) eachSchema(each, false, visit)
    if (!isObject(value)) return
    if (!isMap && !value.$ref) visit(value, JSON.stringify(value))
    for (const [key, inner] of Object.entries(value))
      if (isMap || !['default', 'const', 'enum'].includes(key)) eachSchema(inner, !isMap && key === 'properties', visit)
  }
  for (const schema of Object.values(schemas))
    for (const [key, value] of Object.entries(schema))
      eachSchema(value, key === 'properties', (_schema, text) => counts.set(text, (counts.get(text) ?? 0) + 1))
  const names = new Map<string, string>()
  const added: Record<string, SchemaNode> = {}
  const replace = (value: unknown, isMap: boolean, path: string): unknown => {
    if (Array.isArray(value)) return value.map(each => replace(each, false, path))
    if (!isObject(value)) return value
    const text = JSON.stringify(value)
    if (!isMap && !value.$ref && text.length >= MIN_SHARED_LENGTH && (counts.get(text) ?? 0) > 1) {
      if (!names.has(text)) {
        let name = path
        for (let count = 2; schemas[name] || added[name]; count++) name = `${path}${count}`
        names.set(text, name)
        added[name] = {}
        added[name] = replaceWithin(value, false, name)
      }
      return { $ref: `${SCHEMAS}${names.get(text)}` }
    }
    return replaceWithin(value, isMap, path)
  }
  const replaceWithin = (value: SchemaNode, isMap: boolean, path: string): SchemaNode =>
    Object.fromEntries(
      Object.entries(value).map(([key, item]) => [
        key,
        !isMap && ['default', 'const', 'enum', 'required'].includes(key)
          ? item
          : replace(item, !isMap && key === 'properties', isMap ? `${path}${toPascal(key)}` : path),
      ]),
    )
  const all = Object.entries(schemas).map(([name, schema]): [string, SchemaNode] => [
    name,
    replaceWithin(schema, false, name),
  ])
  return Object.fromEntries([...all, ...Object.entries(added)])
}

const REFERENCE = /"#\/components\/(schemas|responses)\/([^"]+)"/g

/**
 * Orders schemas by their first use, each followed by the schemas it references. Schemas of one module share their words,
 * and gzip finds repetitions only within 32 KiB.
 */
export function inOrderOfUse(
  schemas: Record<string, SchemaNode>,
  { paths, responses }: { paths: SchemaNode; responses: Record<string, SchemaNode> },
): Record<string, SchemaNode> {
  const parts: Record<string, Record<string, SchemaNode>> = { schemas, responses }
  const used = new Set<string>()
  const ordered: Record<string, SchemaNode> = {}
  const visit = (part: unknown): void => {
    for (const [reference, place, name] of JSON.stringify(part).matchAll(REFERENCE)) {
      if (used.has(reference)) continue
      used.add(reference)
      const target = parts[place][name]
      if (place === 'schemas') ordered[name] = target
      visit(target)
    }
  }
  visit(paths)
  return { ...ordered, ...Object.fromEntries(Object.entries(schemas).filter(([name]) => !(name in ordered))) }
}
