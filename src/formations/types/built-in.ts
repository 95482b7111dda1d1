import { z } from 'zod'
import { type Problem, raise } from '../../core/api/errors.ts'
import { type FlatField, flatten, type JsonObject, type Request } from '../../core/api/flatten.ts'
import { kinds } from '../../core/api/kind.ts'
import { type Operation, operations } from '../../core/api/operation.ts'
import { fieldsOf, pathNames } from '../../core/api/parameters.ts'
import { type ResourceType, resourceTypes } from '../../core/api/resource-type.ts'
import { validationProblems } from '../../core/api/validate.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { propertyIn, propertyPath } from '../template/properties.ts'
import type { BuiltInType, Property } from './model.ts'

/** Types of resources that the modules declare, as templates see them. */

/** Arguments that are of the call and not of the resource. */
const OF_THE_CALL = ['project_id', 'version_label', 'expected_version', 'dry_run', 'wait']

const builtIn = processSingleton(() => {
  const byName = new Map<string, BuiltInType>()
  for (const declared of resourceTypes.all()) {
    const type = typeOf(declared)
    for (const name of [declared.name, ...declared.aliases]) byName.set(name, type)
  }
  return byName
})

/** Names that templates have for built-in types. */
export const builtInNames = (): string[] => resourceTypes.all().flatMap(({ name, aliases }) => [name, ...aliases])

export const builtInTypes = (services: Services): readonly BuiltInType[] => [...new Set(builtIn(services).values())]

/** The built-in type of a name; undefined for none. */
export const builtInType = (services: Services, name: string): BuiltInType | undefined => builtIn(services).get(name)

function typeOf(declared: ResourceType): BuiltInType {
  const kind = kinds.get(declared.kind)
  const named = (id: string) => operations.get(id)
  const create = named(declared.create)
  const update = declared.update === null ? null : named(declared.update)
  const tags = declared.tags === null ? null : named(declared.tags)
  const left = new Set([...OF_THE_CALL, ...declared.without])
  const fields = (operation: Operation, own: boolean): Map<string, FlatField> =>
    new Map(
      [...(flatten(operation)?.fields ?? [])].filter(
        ([name, field]) => !left.has(name) && !(own && field.in === 'path') && !(field.in === 'query'),
      ),
    )
  const creating = fields(create, false)
  const changing = update ? fields(update, true) : new Map<string, FlatField>()
  const tagged = tags && !changing.has('tags')
  const properties = new Map<string, Property>()
  for (const [name, { required, schema }] of [...changing, ...creating])
    properties.set(name, { required: creating.has(name) && required, schema })
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
      read: named(declared.read),
      update,
      tags: tagged ? tags : null,
      delete: named(declared.delete),
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
    attributes: new Set([...scalarFields(named(declared.read)), ...Object.keys(declared.attributes)]),
    exampleId: `${kind.prefix}_${'0'.repeat(26)}`,
    check: async (_services, given, options) => problemsOf(type, given, options),
  }
  return type
}

const SCALARS = ['string', 'number', 'int', 'boolean', 'enum', 'literal', 'template_literal']

/** Fields of the answer of an operation that are single values. */
function scalarFields({ answers }: Operation): string[] {
  const shown = answers[200]
  const forms = shown instanceof z.ZodUnion ? (shown.options as z.ZodType[]) : [shown]
  return forms.flatMap(form =>
    Object.entries(fieldsOf(form)).flatMap(([name, field]) =>
      SCALARS.includes(bare(field as z.ZodType)) ? [name] : [],
    ),
  )
}

const bare = (type: z.ZodType): string =>
  type instanceof z.ZodOptional || type instanceof z.ZodNullable || type instanceof z.ZodDefault
    ? bare(type.unwrap() as z.ZodType)
    : type.type

/** What is wrong with the properties of a type. */
function problemsOf(
  type: BuiltInType,
  given: JsonObject,
  { at, complete }: { at: string; complete: boolean },
): Problem[] {
  const problems = Object.keys(given)
    .filter(name => !type.properties.has(name))
    .map(
      (name): Problem => ({
        code: 'UNKNOWN_PROPERTY',
        path: propertyPath(at, name),
        message: `is no property of ${type.name}`,
      }),
    )
  for (const [name, { required }] of type.properties)
    if (complete && required && given[name] === undefined)
      problems.push({ code: 'REQUIRED', path: propertyPath(at, name), message: 'is required' })
  if (problems.length > 0) return problems
  const { create, update, tags } = type.operations
  const { body } = operationRequest(
    create,
    operationArguments(type, given, name => !type.later.has(name)),
  )
  const wrong = create.body ? validationProblems(create.body, body ?? {}) : []
  const later = Object.fromEntries([...type.later].filter(name => name in given).map(name => [name, given[name]]))
  if (update && Object.keys(later).some(name => name !== 'tags' || !tags)) {
    const { tags: _tags, ...rest } = later
    wrong.push(...validationProblems(update.body as never, tags ? rest : later))
  }
  if (tags && 'tags' in later) wrong.push(...validationProblems(tags.body as never, later.tags, 'tags'))
  for (const name of pathNames(create))
    if (given[name] !== undefined && typeof given[name] !== 'string')
      wrong.push({ code: 'INVALID_TYPE', path: name, message: 'must be a string' })
  if (wrong.length === 0) wrong.push(...(type.declared.check?.(given) ?? []))
  return wrong
    .filter(({ code, path }) => complete || code !== 'REQUIRED' || /[.[]/.test(path))
    .map(problem => ({
      ...problem,
      path: propertyPath(at, pathInProperties(type, problem.path)),
    }))
}

/** The path of a property for that of an argument that it is part of. */
function pathInProperties({ properties }: BuiltInType, path: string): string {
  const first = propertyIn(path)
  return properties.has(first) || first === path ? path : path.slice(first.length + 1)
}

/** The flat arguments that properties stand for. */
export function operationArguments(
  type: BuiltInType,
  properties: JsonObject,
  wanted: (name: string) => boolean = () => true,
): JsonObject {
  const { translate } = type.declared
  const given = Object.fromEntries(Object.entries(properties).filter(([name]) => wanted(name)))
  return translate ? translate.arguments(given) : given
}

/** A request of an operation out of flat arguments, which are not validated. */
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

/** Arguments that name a resource to an operation on it. */
export function itemArguments(type: BuiltInType, operation: Operation, id: string, properties: JsonObject): JsonObject {
  const names = pathNames(operation)
  return Object.fromEntries(
    names.map(name => {
      // What comes before it in the path is what it is below.
      if (name === names.at(-1)) return [name, id]
      const value = properties[name]
      return [
        name,
        typeof value === 'string' ? value : raise('INTERNAL_ERROR', { message: `${type.name} has no ${name}` }),
      ]
    }),
  )
}
