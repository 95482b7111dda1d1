import { z } from 'zod'
import { type Problem, raiseInvalid } from './errors.ts'
import type { Operation } from './operation.ts'
import { pathDescription, pathNames, queryFields } from './parameters.ts'

/**
 * The flat form of a call: path, query and body in one object, for models, command lines and clients. A name that the path
 * or the query has already is `body_<name>` in the body.
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
}

export type FlatCall = {
  /** By their names. */
  fields: ReadonlyMap<string, FlatField>
  /** Schema of the properties that a body may have beside the fields; false where it may have none. */
  others: JsonObject | boolean
}

const BODY = 'body_'

/** Metadata of schemas without what is for the document alone, and without ids, which would put schemas behind references. */
const unnamed = {
  get(schema: z.core.$ZodType) {
    const { id: _id, example: _example, 'x-secret': _secret, ...metadata } = z.globalRegistry.get(schema) ?? {}
    return metadata
  },
} as unknown as typeof z.globalRegistry

/** The JSON Schema of what a caller sends, without references. */
export function inlineSchema(type: z.core.$ZodType): JsonObject {
  const { $schema: _draft, ...schema } = z.toJSONSchema(type, {
    io: 'input',
    unrepresentable: 'any',
    reused: 'inline',
    metadata: unnamed,
    // Fields that are checked by code of their own name the schema that describes them.
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

/** One object that stands for several forms: the properties of all; required is what all of them require. */
function either(forms: ObjectForm[]): ObjectForm {
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

/** One object that satisfies several schemas at a time. */
function both(forms: ObjectForm[]): ObjectForm {
  return {
    properties: Object.assign({}, ...forms.map(({ properties }) => properties)),
    required: [...new Set(forms.flatMap(({ required }) => required))],
    others: forms.find(({ others }) => others !== false)?.others ?? false,
  }
}

/** A root schema as one object. */
function objectForm(schema: JsonObject): ObjectForm {
  const own: ObjectForm = {
    properties: (schema.properties as Record<string, JsonObject> | undefined) ?? {},
    required: (schema.required as string[] | undefined) ?? [],
    others: (schema.additionalProperties as JsonObject | boolean | undefined) ?? false,
  }
  const parts = (schema.allOf as JsonObject[] | undefined)?.map(objectForm) ?? []
  const forms = [schema.anyOf, schema.oneOf].flatMap(union =>
    union ? [either((union as JsonObject[]).map(objectForm))] : [],
  )
  return parts.length + forms.length === 0 ? own : both([own, ...parts, ...forms])
}

const calls = new WeakMap<Operation, FlatCall>()

/** The flat call of an operation; null where its body is not JSON. Made once an operation. */
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
      return { name, in: 'path', field: name, required: true, schema }
    }),
    ...Object.entries(query.properties)
      .filter(([name]) => !pathNames(operation).includes(name))
      .map(([name, schema]): FlatField => {
        return { name, in: 'query', field: name, required: query.required.includes(name), schema }
      }),
    ...Object.entries(body.properties).map(([field, schema]): FlatField => {
      const name = outside.includes(field) ? `${BODY}${field}` : field
      const required = !operation.bodyOptional && body.required.includes(field)
      return { name, in: 'body', field, required, schema }
    }),
  ]
  return { fields: new Map(fields.map(field => [field.name, field])), others: body.others }
}

/** The JSON Schema of a flat call. `without`: fields that are not offered, of the query or the body. */
export function flatSchema({ fields, others }: FlatCall, without: readonly string[] = []): JsonObject {
  const offered = [...fields.values()].filter(({ in: part, field }) => part === 'path' || !without.includes(field))
  const required = offered.filter(each => each.required).map(({ name }) => name)
  return {
    type: 'object',
    properties: Object.fromEntries(offered.map(({ name, schema }) => [name, schema])),
    ...(required.length > 0 ? { required } : {}),
    additionalProperties: others,
  }
}

/** A value as a query carries it. */
function queryValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(queryValue)
  if (typeof value !== 'object' || value === null) return String(value)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, queryValue(item)]))
}

export type Request = {
  params: Record<string, string>
  query: Record<string, unknown>
  /** Undefined where the operation takes no body, or may go without one and got none of its fields. */
  body: Record<string, unknown> | undefined
}

/**
 * Takes a flat object apart into path, query and body, which are not validated beyond that. A null in the query counts as
 * absent. `at` is the path of the object in the paths of problems; fields `without` are refused like unknown ones.
 * @throws VALIDATION_FAILED for parameters of the path that are missing, and properties that the operation does not take
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
  const body: Record<string, unknown> = {}
  const problems: Problem[] = []
  const refuse = (code: string, name: string, message: string) =>
    problems.push({ code, path: at === '' ? name : `${at}.${name}`, message })
  for (const { name, in: part } of call.fields.values())
    if (part === 'path' && typeof input[name] !== 'string') refuse('REQUIRED', name, 'is required, as a text')
  for (const [name, value] of Object.entries(input)) {
    const field = call.fields.get(name)
    if (field?.in === 'path') params[name] = String(value)
    else if (field ? without.includes(field.field) : call.others === false)
      refuse('UNKNOWN_PROPERTY', name, 'is not a known property')
    else if (field?.in === 'query') {
      if (value !== null && value !== undefined) query[field.field] = queryValue(value)
    } else body[field?.field ?? unprefixed(call, name)] = value
  }
  if (problems.length > 0) raiseInvalid(problems)
  const bodiless = !operation.body || (operation.bodyOptional && Object.keys(body).length === 0)
  return { params, query, body: bodiless ? undefined : body }
}

/** The name in the body of a property that no field declares: `body_` says that path or query have a field of that name. */
function unprefixed({ fields }: FlatCall, name: string): string {
  const bare = name.replace(/^(body_)+/, '')
  return name !== bare && fields.has(bare) ? name.slice(BODY.length) : name
}
