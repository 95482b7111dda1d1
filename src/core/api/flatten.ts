import { z } from 'zod'
import { type Problem, raiseInvalid } from '../base/errors.ts'
import { ExactNumber, isObject } from '../base/exact-json.ts'
import type { Operation } from './operation.ts'
import { pathDescription, pathNames, queryFields } from './parameters.ts'

/**
 * The flat form of a call: path, query and body in one object, for models, command lines and clients. A body field whose
 * name is already used by the path or the query becomes `body_<name>`. For models, a body with any names, such as tags, is
 * one property.
 */

export type JsonObject = Record<string, unknown>

export type FlatField = {
  /** Name in the flat object. */
  name: string
  in: 'path' | 'query' | 'body'
  /** Name in the path, the query or the body. */
  field: string
  required: boolean
  /** JSON Schema without references. */
  schema: JsonObject
  /** Whether the field is another name of a field: accepted, but not offered. */
  isAlias: boolean
}

export type FlatCall = {
  /** By name in the flat object. */
  fields: ReadonlyMap<string, FlatField>
  /** Name and schema of the whole body if it has any names; null for a body with known fields. */
  map: { name: string; schema: JsonObject } | null
}

const BODY = 'body_'

/** Schema metadata without document-only fields and without ids, which would turn schemas into references. */
const inlineMetadata = {
  get(schema: z.core.$ZodType) {
    const { id: _id, example: _example, 'x-secret': _secret, ...metadata } = z.globalRegistry.get(schema) ?? {}
    return metadata
  },
} as unknown as typeof z.globalRegistry

/** Returns the JSON Schema of an input, without references. */
export function inlineSchema(type: z.core.$ZodType): JsonObject {
  const { $schema: _draft, ...schema } = z.toJSONSchema(type, {
    io: 'input',
    unrepresentable: 'any',
    reused: 'inline',
    metadata: inlineMetadata,
    // Fields that are validated by code reference the schema that describes them.
    override({ jsonSchema }) {
      const named = z.globalRegistry._idmap.get(jsonSchema.$ref?.replace('#/$defs/', '') ?? '')
      if (!named) return
      const { $ref: _ref, ...own } = jsonSchema
      for (const key of Object.keys(jsonSchema)) delete jsonSchema[key as keyof typeof jsonSchema]
      Object.assign(jsonSchema, inlineSchema(named), own)
    },
  }) as JsonObject
  return schema
}

type ObjectForm = { properties: Record<string, JsonObject>; required: string[]; others: JsonObject | boolean }

const NOTHING: ObjectForm = { properties: {}, required: [], others: false }

/** Merges alternatives: the properties of all; required are the properties that every alternative requires. */
function mergeAlternatives(forms: ObjectForm[]): ObjectForm {
  const names = [...new Set(forms.flatMap(({ properties }) => Object.keys(properties)))]
  return {
    properties: Object.fromEntries(
      names.map((name): [string, JsonObject] => {
        const schemas = forms.map(({ properties }) => properties[name]).filter(schema => schema !== undefined)
        const distinct = [...new Map(schemas.map(schema => [JSON.stringify(schema), schema])).values()]
        return [name, distinct.length === 1 ? distinct[0] : { anyOf: distinct }]
      }),
    ),
    required: names.filter(name => forms.every(({ required }) => required.includes(name))),
    others: forms.find(({ others }) => others !== false)?.others ?? false,
  }
}

/** Merges an intersection: the properties and required properties of all. */
function mergeIntersection(forms: ObjectForm[]): ObjectForm {
  return {
    properties: Object.assign({}, ...forms.map(({ properties }) => properties)),
    required: [...new Set(forms.flatMap(({ required }) => required))],
    others: forms.find(({ others }) => others !== false)?.others ?? false,
  }
}

/** Returns a root schema as a single object. */
export function objectForm(schema: JsonObject): ObjectForm {
  const own: ObjectForm = {
    properties: (schema.properties as Record<string, JsonObject> | undefined) ?? {},
    required: (schema.required as string[] | undefined) ?? [],
    others: (schema.additionalProperties as JsonObject | boolean | undefined) ?? false,
  }
  const parts = (schema.allOf as JsonObject[] | undefined)?.map(objectForm) ?? []
  const forms = [schema.anyOf, schema.oneOf].flatMap(union =>
    union ? [mergeAlternatives((union as JsonObject[]).map(objectForm))] : [],
  )
  return parts.length + forms.length === 0 ? own : mergeIntersection([own, ...parts, ...forms])
}

const calls = new WeakMap<Operation, FlatCall>()

/** Returns the flat call of an operation, cached; null if its body is not JSON. */
export function flatten(operation: Operation): FlatCall | null {
  if (operation.body && !operation.consumes.includes('application/json')) return null
  const call = calls.get(operation) ?? flatCall(operation)
  calls.set(operation, call)
  return call
}

function flatCall(operation: Operation): FlatCall {
  const query = objectForm(inlineSchema(z.object(queryFields(operation))))
  const body = operation.body ? objectForm(inlineSchema(operation.body)) : NOTHING
  const outside = [...pathNames(operation), ...Object.keys(query.properties)]
  const fields = [
    ...pathNames(operation).map((name): FlatField => {
      const schema = { type: 'string', description: pathDescription(name) }
      return { name, in: 'path', field: name, required: true, schema, isAlias: false }
    }),
    ...Object.entries(query.properties)
      .filter(([name]) => !pathNames(operation).includes(name))
      .map(([name, schema]): FlatField => {
        return { name, in: 'query', field: name, required: query.required.includes(name), schema, isAlias: false }
      }),
    ...Object.entries(body.properties).map(([field, { 'x-alias-of': original, ...schema }]): FlatField => {
      const name = outside.includes(field) ? `${BODY}${field}` : field
      const required = !operation.bodyOptional && body.required.includes(field)
      return { name, in: 'body', field, required, schema, isAlias: original !== undefined }
    }),
  ]
  const name = operation.path.slice(operation.path.lastIndexOf('/') + 1)
  const map = body.others === false ? null : { name, schema: { type: 'object', additionalProperties: body.others } }
  return { fields: new Map(fields.map(field => [field.name, field])), map }
}

/** Returns the JSON Schema of a flat call. `without` excludes fields of the query or body. */
export function flatSchema({ fields, map }: FlatCall, without: readonly string[] = []): JsonObject {
  const offered = [...fields.values()].filter(
    ({ in: part, field, isAlias }) => !isAlias && (part === 'path' || !without.includes(field)),
  )
  const required = [...offered.filter(each => each.required), ...(map ? [map] : [])].map(({ name }) => name)
  return {
    type: 'object',
    properties: Object.fromEntries([...offered, ...(map ? [map] : [])].map(({ name, schema }) => [name, schema])),
    ...(required.length > 0 ? { required } : {}),
    additionalProperties: false,
  }
}

/** Converts a value to its form in a query string. */
function queryValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(queryValue)
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return String(value)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, queryValue(item)]))
}

export type Request = {
  params: Record<string, string>
  query: Record<string, unknown>
  /** Undefined if the operation has no body, or an optional body of which no field was given. */
  body: Record<string, unknown> | undefined
}

/**
 * Splits a flat object into path, query and body, without further validation. A null in the query counts as absent. `at`
 * prefixes the paths of problems; fields in `without` are refused like unknown ones.
 * @throws VALIDATION_FAILED for missing path parameters and unknown properties
 */
export function unflatten(
  operation: Operation,
  input: Record<string, unknown>,
  { at = '', without = [] }: { at?: string; without?: readonly string[] } = {},
): Request {
  const call = flatten(operation)
  if (!call) throw new Error(`operation ${operation.id} has no flat call`)
  const params: Record<string, string> = {}
  const query: Record<string, unknown> = {}
  let body: Record<string, unknown> = {}
  const problems: Problem[] = []
  const refuse = (code: string, name: string, message: string) =>
    problems.push({ code, path: at === '' ? name : `${at}.${name}`, message })
  for (const { name, in: part } of call.fields.values())
    if (part === 'path' && typeof input[name] !== 'string') refuse('REQUIRED', name, 'must be a string')
  if (call.map && !isObject(input[call.map.name])) refuse('REQUIRED', call.map.name, 'must be an object')
  for (const [name, value] of Object.entries(input)) {
    const field = call.fields.get(name)
    if (name === call.map?.name) body = value as JsonObject
    else if (!field || (field.in !== 'path' && without.includes(field.field)))
      refuse('UNKNOWN_PROPERTY', name, 'is not a known property')
    else if (field.in === 'path') params[name] = String(value)
    else if (field.in === 'query') {
      if (value !== null && value !== undefined) query[field.field] = queryValue(value)
    } else body[field.field] = value
  }
  if (problems.length > 0) raiseInvalid(problems)
  const bodiless = !operation.body || (operation.bodyOptional && Object.keys(body).length === 0)
  return { params, query, body: bodiless ? undefined : body }
}
