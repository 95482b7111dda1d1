import { type JsonObject, objectForm } from '#core/api/flatten.ts'
import { isObject } from '#core/base/exact-json.ts'
import { NameMap, similarName } from './names.ts'
import type { OutgoingProfile } from './profile.ts'

/** Schema of arguments as a vendor accepts it. */
export type SentSchema = {
  schema: JsonObject
  /** Returns arguments that fit the schema with their original names. */
  restore: (args: unknown) => unknown
}

/** A schema cannot be sent to a vendor; the message says why. */
export class UnsendableSchemaError extends Error {}

const MAX_DEPTH = 64
/** Longest description of conditions that a vendor accepts no schema for. */
const MAX_CONDITIONS = 4_000
/** Schemas in alternatives at the top. */
const MAX_ALTERNATIVES = 50
/** Schemas that are written for one tool: references are repeated where they are used. */
export const MAX_SCHEMAS = 10_000

type SchemaProfile = Pick<OutgoingProfile, 'propertyNames' | 'topAlternatives' | 'references'>
type Restore = ((value: unknown) => unknown) | null
type Sent = { node: unknown; restore: Restore }

/**
 * Returns the schema of a tool's arguments as a vendor accepts it: one object at the top, accepted names of properties,
 * properties for every object and items for every array, and references replaced where the vendor takes none. It is kept
 * as long as the given schema: the steps of a turn have the same tools.
 * @throws UnsendableSchemaError
 */
export function sentSchema(schema: JsonObject, profile: SchemaProfile): SentSchema {
  let byProfile = written.get(schema)
  if (!byProfile) written.set(schema, (byProfile = new WeakMap()))
  let sent = byProfile.get(profile)
  if (!sent) {
    const { node, restore } = new SchemaWriter(schema, profile).top()
    sent = { schema: node as JsonObject, restore: restore ?? (args => args) }
    byProfile.set(profile, sent)
  }
  return sent
}

const written = new WeakMap<JsonObject, WeakMap<SchemaProfile, SentSchema>>()

const ALTERNATIVES = ['anyOf', 'oneOf', 'allOf'] as const
/** Keywords with one schema, with a list of schemas, and with schemas by name. */
const ONE = ['additionalProperties', 'not', 'if', 'then', 'else', 'contains', 'propertyNames', 'unevaluatedProperties']
const MANY = ['anyOf', 'oneOf', 'allOf', 'prefixItems']
const NAMED = ['$defs', 'definitions', 'patternProperties', 'dependentSchemas']

class SchemaWriter {
  readonly #root: JsonObject
  readonly #profile: SchemaProfile
  #written = 0

  constructor(root: JsonObject, profile: SchemaProfile) {
    this.#root = root
    this.#profile = profile
  }

  top(): Sent {
    const { topAlternatives } = this.#profile
    const merged = topAlternatives ? this.#root : this.#withoutAlternatives(this.#resolved(this.#root))
    return this.#write({ ...merged, type: 'object' }, [])
  }

  /** Merges alternatives into one object, whose description has their conditions. */
  #withoutAlternatives(schema: JsonObject): JsonObject {
    const used = ALTERNATIVES.filter(keyword => Array.isArray(schema[keyword]))
    if (used.length === 0) return schema
    const inlined = Object.fromEntries(
      used.map(keyword => [
        keyword,
        (schema[keyword] as unknown[]).map(each => (isObject(each) ? this.#resolved(each) : {})),
      ]),
    )
    if (Object.values(inlined).flat().length > MAX_ALTERNATIVES)
      throw new UnsendableSchemaError('the schema has too many alternatives')
    const { properties, required, others } = objectForm({ ...schema, ...inlined })
    const { anyOf: _anyOf, oneOf: _oneOf, allOf: _allOf, ...rest } = schema
    const conditions = `The arguments must satisfy ${JSON.stringify(inlined)}`
    return {
      ...rest,
      properties,
      required,
      additionalProperties: others,
      ...(conditions.length <= MAX_CONDITIONS && {
        description: [schema.description, conditions].filter(Boolean).join('\n'),
      }),
    }
  }

  /** Follows the reference of a schema, if it has one; its own keywords take precedence. */
  #resolved(schema: JsonObject, followed: readonly string[] = []): JsonObject {
    const { $ref, ...own } = schema
    if (typeof $ref !== 'string') return schema
    if (followed.includes($ref)) throw new UnsendableSchemaError(`${$ref} refers to itself`)
    return { ...this.#resolved(this.#target($ref), [...followed, $ref]), ...own }
  }

  #target($ref: string): JsonObject {
    let target: unknown = $ref.startsWith('#') ? this.#root : undefined
    for (const part of $ref.split('/').slice(1)) {
      const key = decoded(part).replaceAll('~1', '/').replaceAll('~0', '~')
      target =
        typeof target === 'object' && target !== null && Object.hasOwn(target, key) ? (target as any)[key] : undefined
    }
    if (typeof target !== 'object' || target === null) throw new UnsendableSchemaError(`${$ref} refers to nothing`)
    return target as JsonObject
  }

  #write(value: unknown, path: readonly string[]): Sent {
    if (value === true || value === null) return { node: {}, restore: null }
    if (typeof value !== 'object' || Array.isArray(value)) return { node: value, restore: null }
    if (++this.#written > MAX_SCHEMAS) throw new UnsendableSchemaError('the schema is too large')
    if (path.length > MAX_DEPTH) throw new UnsendableSchemaError('the schema is nested too deeply')
    const { $ref } = value as JsonObject
    let schema = value as JsonObject
    let followed = path
    if (typeof $ref === 'string' && !this.#profile.references) {
      if (path.includes($ref)) throw new UnsendableSchemaError(`${$ref} refers to itself`)
      schema = this.#resolved(schema)
      followed = [...path, $ref]
    } else followed = [...path, '']
    const node = inCurrentForm(schema)
    if (!this.#profile.references) for (const keyword of ['$defs', 'definitions']) delete node[keyword]
    for (const keyword of ONE) if (keyword in node) node[keyword] = this.#write(node[keyword], followed).node
    for (const keyword of MANY)
      if (Array.isArray(node[keyword]))
        node[keyword] = (node[keyword] as unknown[]).map(each => this.#write(each, followed).node)
    for (const keyword of NAMED)
      if (isObject(node[keyword]))
        node[keyword] = Object.fromEntries(
          Object.entries(node[keyword] as JsonObject).map(([name, each]) => [name, this.#write(each, followed).node]),
        )
    const items = this.#items(node, followed)
    const properties = this.#properties(node, followed)
    return { node, restore: both(items, properties) }
  }

  #items(node: JsonObject, path: readonly string[]): Restore {
    // A list of schemas is how drafts before 2020-12 write tuples.
    if (Array.isArray(node.items)) node.items = { anyOf: node.items }
    if (typesOf(node).includes('array') && node.items === undefined) node.items = {}
    if (node.items === undefined) return null
    const { node: items, restore } = this.#write(node.items, path)
    node.items = items
    return restore && (value => (Array.isArray(value) ? value.map(restore) : value))
  }

  #properties(node: JsonObject, path: readonly string[]): Restore {
    if (typesOf(node).includes('object') && !isObject(node.properties)) node.properties = {}
    if (!isObject(node.properties)) return null
    const names = new NameMap(this.#profile.propertyNames ?? /^/, similarName).reserve(Object.keys(node.properties))
    const restores = new Map<string, Restore>()
    const sent = Object.entries(node.properties).map(([name, each]): [string, unknown] => {
      const { node: property, restore } = this.#write(each, path)
      restores.set(names.outgoing(name), restore)
      return [names.outgoing(name), property]
    })
    node.properties = Object.fromEntries(sent)
    if (Array.isArray(node.required)) node.required = node.required.map(name => names.outgoing(String(name)))
    if (names.changed().length === 0 && [...restores.values()].every(restore => restore === null)) return null
    return value =>
      isObject(value)
        ? Object.fromEntries(
            Object.entries(value).map(([name, each]) => [names.original(name), restores.get(name)?.(each) ?? each]),
          )
        : value
  }
}

const BOUNDS = [
  ['exclusiveMinimum', 'minimum'],
  ['exclusiveMaximum', 'maximum'],
] as const

/** Keywords that may be null. */
const NULLABLE = ['const', 'default']

/**
 * Returns a copy without keywords that are null, as some generators write absent ones, and with numbers as exclusive bounds:
 * in draft 4 they say whether the other bound is exclusive.
 */
function inCurrentForm(schema: JsonObject): JsonObject {
  const node = Object.fromEntries(
    Object.entries(schema).filter(([keyword, value]) => value !== null || NULLABLE.includes(keyword)),
  )
  for (const [exclusive, bound] of BOUNDS) {
    if (typeof node[exclusive] !== 'boolean') continue
    if (node[exclusive] && node[bound] !== undefined) {
      node[exclusive] = node[bound]
      delete node[bound]
    } else delete node[exclusive]
  }
  return node
}

/** @throws UnsendableSchemaError for a part of a reference that cannot be decoded */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    throw new UnsendableSchemaError(`${part} is not a part of a reference`)
  }
}

const typesOf = ({ type }: JsonObject): unknown[] => (Array.isArray(type) ? type : [type])

const both = (first: Restore, second: Restore): Restore =>
  first && second ? value => second(first(value)) : (first ?? second)
