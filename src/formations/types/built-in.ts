import { z } from 'zod'
import { type FlatField, flatten, type JsonObject, type Request } from '#core/api/flatten.ts'
import { type Kind, kinds } from '#core/api/kind.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import { fieldsOf, pathNames } from '#core/api/parameters.ts'
import { type ResourceType, resourceTypes } from '#core/api/resource-type.ts'
import { validationProblems } from '#core/api/validate.ts'
import { AppError, type Problem, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { BuiltInType, Property } from './model.ts'
import { propertyName, propertyPath } from './properties.ts'

/** Built-in resource types of templates, derived from the resource types of the modules. */

/** Arguments of operations that are not properties of the resource. */
const CALL_ARGUMENTS = ['project_id', 'version_label', 'expected_version', 'dry_run', 'wait']

const typesByName = processSingleton(() => {
  const byName = new Map<string, BuiltInType>()
  for (const declared of resourceTypes.all()) {
    const type = typeOf(declared)
    for (const name of [declared.name, ...declared.aliases]) byName.set(name, type)
  }
  return byName
})

/** Returns the names and aliases of built-in types. */
export const builtInNames = (): string[] => resourceTypes.all().flatMap(({ name, aliases }) => [name, ...aliases])

export const builtInTypes = (services: Services): readonly BuiltInType[] => [...new Set(typesByName(services).values())]

/** Returns the built-in type of a name; undefined if there is none. */
export const builtInType = (services: Services, name: string): BuiltInType | undefined =>
  typesByName(services).get(name)

function typeOf(declared: ResourceType): BuiltInType {
  const kind = kinds.get(declared.kind)
  const operation = (id: string) => operations.get(id)
  const create = operation(declared.create)
  const update = declared.update === null ? null : operation(declared.update)
  const tags = declared.tags === null ? null : operation(declared.tags)
  const excluded = new Set([...CALL_ARGUMENTS, ...declared.without])
  const fields = (of: Operation, isUpdate: boolean): Map<string, FlatField> =>
    new Map(
      [...(flatten(of)?.fields ?? [])].filter(
        ([name, field]) =>
          !excluded.has(name) && !field.isAlias && !(isUpdate && field.in === 'path') && !(field.in === 'query'),
      ),
    )
  const creating = fields(create, false)
  const changing = update ? fields(update, true) : new Map<string, FlatField>()
  const tagged = tags && !changing.has('tags')
  const properties = new Map<string, Property>()
  for (const [name, { required, schema }] of [...changing, ...creating])
    properties.set(name, { required: (creating.has(name) && required) || declared.required.includes(name), schema })
  if (tagged && !properties.has('tags'))
    properties.set('tags', { required: false, schema: { type: 'object', additionalProperties: { type: 'string' } } })
  const { translate } = declared
  for (const [name, schema] of Object.entries(translate?.properties ?? {}))
    properties.set(name, { required: translate?.required.includes(name) ?? false, schema })
  const isMutable = (name: string): boolean =>
    changing.has(name) ||
    declared.changing !== undefined ||
    (tagged === true && name === 'tags') ||
    (translate !== undefined && name in translate.properties)
  const type: BuiltInType = {
    name: declared.name,
    registered: null,
    kind,
    declared,
    operations: {
      create,
      read: operation(declared.read),
      update,
      tags: tagged ? tags : null,
      delete: operation(declared.delete),
    },
    properties,
    fixed: new Set(
      [...declared.fixed, ...[...properties.keys()].filter(name => !isMutable(name))].filter(
        name => !declared.replaced.includes(name),
      ),
    ),
    replaced: new Set(declared.replaced),
    writeOnly: declared.writeOnly,
    later: new Set(
      [...properties.keys()].filter(name => !creating.has(name) && !(translate && name in translate.properties)),
    ),
    attributes: new Set([...scalarFields(operation(declared.read)), ...Object.keys(declared.attributes)]),
    exampleId: `${kind.prefix}_${'0'.repeat(26)}`,
    check: (services, given, options) => problemsOf(services, type, given, options),
  }
  return type
}

const SCALARS = ['string', 'number', 'int', 'boolean', 'enum', 'literal', 'template_literal']

/** Returns the scalar fields in the response of an operation. */
function scalarFields({ answers }: Operation): string[] {
  const response = answers[200]
  const variants = response instanceof z.ZodUnion ? (response.options as z.ZodType[]) : [response]
  return variants.flatMap(variant =>
    Object.entries(fieldsOf(variant)).flatMap(([name, field]) =>
      SCALARS.includes(unwrappedType(field as z.ZodType)) ? [name] : [],
    ),
  )
}

const unwrappedType = (type: z.ZodType): string =>
  type instanceof z.ZodOptional || type instanceof z.ZodNullable || type instanceof z.ZodDefault
    ? unwrappedType(type.unwrap() as z.ZodType)
    : type.type

/** Validates properties against the request schemas of the operations of the type. */
async function problemsOf(
  services: Services,
  type: BuiltInType,
  values: JsonObject,
  { at, complete, tenant }: { at: string; complete: boolean; tenant?: string },
): Promise<Problem[]> {
  const problems = Object.keys(values)
    .filter(name => !type.properties.has(name))
    .map(
      (name): Problem => ({
        code: 'UNKNOWN_PROPERTY',
        path: propertyPath(at, name),
        message: `is not a property of ${type.name}`,
      }),
    )
  for (const [name, { required }] of type.properties)
    if (complete && required && values[name] === undefined)
      problems.push({ code: 'REQUIRED', path: propertyPath(at, name), message: 'is required' })
  if (problems.length > 0) return problems
  const { create, update, tags } = type.operations
  const { body } = operationRequest(
    create,
    operationArguments(type, values, name => !type.later.has(name)),
  )
  const found = create.body ? validationProblems(create.body, body ?? {}) : []
  const later = Object.fromEntries([...type.later].filter(name => name in values).map(name => [name, values[name]]))
  if (update && Object.keys(later).some(name => name !== 'tags' || !tags)) {
    const { tags: _tags, ...rest } = later
    found.push(...validationProblems(update.body as never, tags ? rest : later))
  }
  if (tags && 'tags' in later) found.push(...validationProblems(tags.body as never, later.tags, 'tags'))
  for (const name of pathNames(create))
    if (values[name] !== undefined && typeof values[name] !== 'string')
      found.push({ code: 'INVALID_TYPE', path: name, message: 'must be a string' })
  if (found.length === 0) found.push(...(type.declared.check?.(values) ?? []))
  if (found.length === 0 && tenant !== undefined) found.push(...(await createProblems(services, type, body, tenant)))
  return found
    .filter(({ code, path }) => complete || code !== 'REQUIRED' || /[.[]/.test(path))
    .map(problem => ({
      ...problem,
      path: propertyPath(at, pathInProperties(type, problem.path)),
    }))
}

/** Returns the problems for which the create would refuse a body that its schema accepts, without its references. */
async function createProblems(
  services: Services,
  { operations: { create } }: BuiltInType,
  body: unknown,
  project: string,
): Promise<Problem[]> {
  try {
    if (create.validate && create.body) await create.validate({ services, project, body: create.body.parse(body) })
    return []
  } catch (error) {
    if (!(error instanceof AppError) || error.status !== 400) throw error
    return refusalProblems(error)
  }
}

/** Returns the problems of a refused create, with paths of arguments. */
function refusalProblems({ code, message, meta = {} }: AppError): Problem[] {
  const { problems, field } = meta as { problems?: Problem[]; field?: string }
  if (problems) return problems
  // Messages of other codes begin with the path.
  const path = field ?? /^[a-z_]+(?:\[\d+\]|\.[\w-]+)*(?=:? )/.exec(message)?.[0] ?? ''
  return [{ code, path, message }]
}

/** Returns the problems of a refused create of a resource, with paths of properties below `at`. */
export function createRefusalProblems(
  type: BuiltInType,
  refusal: AppError,
  properties: JsonObject,
  at: string,
): Problem[] {
  const { id } = (refusal.meta ?? {}) as { id?: unknown }
  const holder = Object.keys(properties).find(name => [properties[name]].flat().includes(id))
  return refusalProblems(refusal).map(problem => {
    const path = problem.path === '' && typeof id === 'string' ? (holder ?? '') : problem.path
    return { ...problem, path: propertyPath(at, pathInProperties(type, path)) }
  })
}

/** Returns the warnings about properties of a resource, with paths below `at`. */
export function propertyWarnings(services: Services, type: BuiltInType, properties: JsonObject, at: string): Problem[] {
  const { create } = type.operations
  if (!create.warnings) return []
  const args = operationArguments(type, properties, name => !type.later.has(name))
  return create
    .warnings({ services, body: operationRequest(create, args).body ?? {} })
    .map(problem => ({ ...problem, path: propertyPath(at, pathInProperties(type, problem.path)) }))
}

/** Returns the property path for an argument path: strips the argument that contains the property. */
function pathInProperties({ properties }: BuiltInType, path: string): string {
  const first = propertyName(path)
  return properties.has(first) || first === path ? path : path.slice(first.length).replace(/^(?:\[\d+\])?\.?/, '')
}

/** Translates properties to flat arguments. */
export function operationArguments(
  type: BuiltInType,
  properties: JsonObject,
  isIncluded: (name: string) => boolean = () => true,
): JsonObject {
  const { translate } = type.declared
  const included = Object.fromEntries(Object.entries(properties).filter(([name]) => isIncluded(name)))
  return translate ? translate.arguments(included) : included
}

/** Builds the request of an operation from flat arguments, without validation. */
export function operationRequest(operation: Operation, args: JsonObject): Request {
  const fields = flatten(operation)?.fields
  const params: Record<string, string> = {}
  const query: Record<string, unknown> = {}
  const body: JsonObject = {}
  for (const [name, value] of Object.entries(args)) {
    const field = fields?.get(name)
    if (field?.in === 'path') params[field.field] = String(value)
    else if (field?.in === 'query') query[field.field] = typeof value === 'boolean' ? String(value) : value
    else body[field?.field ?? name] = value
  }
  return { params, query, body: operation.body || operation.receive ? body : undefined }
}

/** Returns the path arguments of an operation on a resource. */
export function itemArguments(type: BuiltInType, operation: Operation, id: string, properties: JsonObject): JsonObject {
  const names = pathNames(operation)
  return Object.fromEntries(
    names.map(name => {
      // Earlier path parameters are the parents of the resource.
      if (name === names.at(-1)) return [name, id]
      const value = properties[name]
      return [
        name,
        typeof value === 'string' ? value : raise('INTERNAL_ERROR', { message: `${type.name} has no ${name}` }),
      ]
    }),
  )
}

/**
 * Whether an operation can join a transaction of the cell of a formation. Others, such as all that write rows at home for another cell,
 * run before it; a POST is repeated under an idempotency key after a lost worker.
 */
export const joinsTransaction = (services: Services, { transaction, reads, kind }: Operation): boolean =>
  (transaction || reads) && homeOfKind(services, kind) === null

/** Returns the services of home if it has the rows of a kind, of which the cell of `services` has copies that may be late; else null. */
export const homeOfKind = ({ home }: Services, kind: Kind<any> | null): Services | null =>
  home && kind?.global ? home : null
