import type { JsonObject } from '#core/api/flatten.ts'
import { MAX_PROBLEMS, validationProblems } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import type { Services } from '#core/base/services.ts'
import { deferredOrder, type PropertyReferences } from '../template/dependencies.ts'
import {
  type Expression,
  type ExpressionMeaning,
  expressionsIn,
  findExcessExpression,
  scopeOf,
  substitutedNames,
  type TemplateScope,
} from '../template/expressions.ts'
import { parseTemplate } from '../template/parse.ts'
import { type Parameter, type ResourceDeclaration, TemplateShape } from '../template/shape.ts'
import { MAX_BYTES } from '../template/yaml.ts'
import { findType } from '../types/find.ts'
import type { TemplateType } from '../types/model.ts'
import { isBelowAny, resolveProperties } from '../types/properties.ts'

/** A resource of a template. */
export type DeclaredResource = {
  logical_id: string
  type: TemplateType
  /** As authored. */
  properties: JsonObject
  /** Properties that are set when all resources exist, because they refer to a resource that refers back. */
  deferred: ReadonlySet<string>
  retain: boolean
  ignored: ReadonlySet<string>
  prevent_destroy: boolean
}

/** Returns the form in which a resource is created: without its deferred properties. */
export const withoutDeferred = (declared: DeclaredResource): DeclaredResource =>
  declared.deferred.size === 0
    ? declared
    : {
        ...declared,
        properties: Object.fromEntries(
          Object.entries(declared.properties).filter(([name]) => !declared.deferred.has(name)),
        ),
      }

export type CompiledTemplate = {
  /** The template as authored, an object. */
  template: JsonObject
  /** Resources whose condition is met, in dependency order. */
  declared: readonly DeclaredResource[]
  /** Resources whose condition is not met. */
  dormant: readonly { logical_id: string; type: TemplateType; properties: JsonObject }[]
  parameters: ReadonlyMap<string, Parameter>
  /** Values of parameters, given or default. */
  values: ReadonlyMap<string, string>
  outputs: Readonly<Record<string, unknown>>
  metadata: unknown
  /** Old logical IDs by new ones; entries of earlier renames may remain. */
  moved: ReadonlyMap<string, readonly string[]>
}

export type Compilation = {
  compiled: CompiledTemplate | null
  problems: Problem[]
  /** Used parameters without a value. */
  missing: string[]
  warnings: Problem[]
}

type Options = {
  /** Project, or user without one, in whose turn schemas are compiled. */
  tenant: string
  parameters?: Readonly<Record<string, string>>
  /** Logical IDs of existing resources, whose required properties may be omitted. Null for a new formation. */
  existing: ReadonlySet<string> | null
}

/** Placeholder of a write-only value in responses. */
export const NO_ECHO = Object.freeze({ no_echo: true })

const isPlaceholder = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.keys(value).length === 1 && 'no_echo' in value

/** Maximum expressions of a template and names in its `sub` expressions: each is resolved several times. */
const MAX_EXPRESSIONS = 10_000

const failed = (problems: Problem[]): Compilation => ({ compiled: null, problems, missing: [], warnings: [] })

/** Parses and validates a template, without database access. Returns the first problems, at most 100. */
export async function compileTemplate(services: Services, source: unknown, options: Options): Promise<Compilation> {
  const parsed = await parseTemplate(services, options.tenant, source)
  if ('problem' in parsed) return failed([parsed.problem])
  const template = parsed.value
  // Each part takes up to 30 ms for the largest template.
  const yieldIfLong = eventLoopYielder()
  const forbiddenKeys = protoKeys(template)
  if (forbiddenKeys.length > 0) return failed(forbiddenKeys)
  const excess = findExcessExpression(template, MAX_EXPRESSIONS)
  if (excess !== null)
    return failed([
      { code: 'TOO_LARGE', path: excess, message: `exceeds the ${MAX_EXPRESSIONS} expressions of a template` },
    ])
  await yieldIfLong()
  const shapeProblems = validationProblems(TemplateShape, template)
  await yieldIfLong()
  if (shapeProblems.length > 0) return failed(shapeProblems)
  return compile(services, template as TemplateShape, options, yieldIfLong)
}

/** Returns a problem for a `__proto__` key, which JSON parsers drop or set as the prototype. */
function protoKeys(value: unknown): Problem[] {
  const problems: Problem[] = []
  const walk = (node: unknown, path: string): void => {
    if (typeof node !== 'object' || node === null || problems.length > 0) return
    for (const [key, item] of Object.entries(node)) {
      const at = Array.isArray(node) ? `${path}[${key}]` : path === '' ? key : `${path}.${key}`
      if (key === '__proto__') problems.push({ code: 'INVALID_VALUE', path: at, message: 'is not allowed as a key' })
      walk(item, at)
    }
  }
  walk(value, '')
  return problems
}

/** Whether the condition of a resource is met; a parameter without a value meets it. */
const isConditionMet = ({ condition }: ResourceDeclaration, values: ReadonlyMap<string, string>): boolean => {
  if (!condition) return true
  const [parameter, expected] = condition.param_equals
  return (values.get(parameter) ?? expected) === expected
}

async function compile(
  services: Services,
  template: TemplateShape,
  options: Options,
  yieldIfLong: () => Promise<void>,
): Promise<Compilation> {
  const parameters = new Map(Object.entries(template.parameters ?? {}))
  const values = valuesOf(parameters, options.parameters)
  const resources = Object.entries(template.resources).filter(([, resource]) => isConditionMet(resource, values))
  const { types, unknown } = typesOf(services, resources)
  const problems = [...unknownParameters(parameters, options.parameters), ...unknown]
  const { outputs = {}, metadata = null } = template
  const expandable = [resources.map(([, { properties }]) => properties), outputs, metadata]
  if (expandedLength(expandable, values) > MAX_BYTES)
    return failed([
      {
        code: 'TOO_LARGE',
        path: 'parameters',
        message: `must not expand to more than ${MAX_BYTES} characters`,
      },
    ])
  await yieldIfLong()
  const logicalIds = new Set(resources.map(([id]) => id))
  const names = { parameters, logicalIds, types, used: new Set<string>() }
  const references = new Map<string, PropertyReferences[]>()
  for (const [id, resource] of resources) {
    await yieldIfLong()
    references.set(id, checkDependencies(id, resource, names, problems))
  }
  const conditions = checkConditions(template, parameters)
  problems.push(...conditions.problems)
  for (const name of conditions.used) names.used.add(name)
  checkExpressions(outputs, 'outputs', names, problems, true)
  checkExpressions(metadata, 'metadata', names, problems, false)
  const known = { ...options, values, types }
  await yieldIfLong()
  const { order, deferred, cycle } = deferredOrder(references)
  if (cycle.length > 0)
    problems.push({
      code: 'CYCLE',
      path: 'resources',
      message: `depend on each other, by properties that cannot be set later: ${cycle.slice(0, 20).join(', ')}`,
    })
  const byId = new Map(resources)
  const declared = order.flatMap((id): DeclaredResource[] => {
    const type = types.get(id)
    return type ? [declaredResource(id, type, byId.get(id) as ResourceDeclaration, deferred.get(id) ?? new Set())] : []
  })
  for (const each of declared) {
    await yieldIfLong()
    problems.push(...(await checkProperties(services, each, known)))
  }
  const dormant = Object.entries(template.resources).flatMap(([logical_id, { type: name, properties = {} }]) => {
    const type = logicalIds.has(logical_id) ? undefined : findType(services, name)
    return type ? [{ logical_id, type, properties }] : []
  })
  const missing = [...names.used].filter(
    name => !values.has(name) && !(options.existing !== null && parameters.get(name)?.use_previous_value),
  )
  const renames = Map.groupBy(Object.entries(template.moved ?? {}), ([, current]) => current)
  const moved = new Map([...renames].map(([current, pairs]) => [current, pairs.map(([old]) => old)]))
  return {
    compiled:
      problems.length > 0
        ? null
        : { template: template as JsonObject, declared, dormant, parameters, values, outputs, metadata, moved },
    problems: problems.slice(0, MAX_PROBLEMS),
    missing,
    warnings: [...parameters]
      .filter(([, { default: standard }]) => standard === undefined)
      .map(([name]) => ({ code: 'REQUIRED', path: `parameters.${name}`, message: 'has no default and must be set' })),
  }
}

/** Returns the types of resources by logical ID, and a problem for each unknown one. */
function typesOf(
  services: Services,
  resources: readonly [string, ResourceDeclaration][],
): { types: Map<string, TemplateType>; unknown: Problem[] } {
  const types = new Map<string, TemplateType>()
  const unknown: Problem[] = []
  for (const [id, { type: name }] of resources) {
    const type = findType(services, name)
    if (type) types.set(id, type)
    else
      unknown.push({
        code: 'INVALID_VALUE',
        path: `resources.${id}.type`,
        message: `is not a resource type: ${name.slice(0, 100)}`,
      })
  }
  return { types, unknown }
}

/** Returns the references of a resource, by its properties and as declared. Adds its problems. */
function checkDependencies(
  id: string,
  { properties = {}, depends_on = [], ignore_fields = [] }: ResourceDeclaration,
  names: Names,
  problems: Problem[],
): PropertyReferences[] {
  const at = `resources.${id}`
  const type = names.types.get(id)
  const later = type && !type.registered ? type.declared.later : []
  const explicit = [depends_on].flat()
  explicit.forEach((other, index) => {
    if (!names.logicalIds.has(other)) problems.push(noResource(`${at}.depends_on[${index}]`, other))
  })
  const referenced = Object.entries(properties).map(([property, value]) => ({
    property,
    others: checkExpressions(value, `${at}.properties.${property}`, names, problems, false),
  }))
  return [...referenced, { property: null, others: explicit }].flatMap(({ property, others }) => {
    const existing = [...new Set(others)].filter(other => names.logicalIds.has(other))
    const isDeferrable = property !== null && later.includes(property) && !ignore_fields.includes(property)
    return existing.length > 0 ? [{ property, others: existing, isDeferrable }] : []
  })
}

/** Returns the parameters that conditions reference, and the problems of conditions. */
function checkConditions(
  { resources }: TemplateShape,
  parameters: ReadonlyMap<string, Parameter>,
): { used: string[]; problems: Problem[] } {
  const used: string[] = []
  const problems: Problem[] = []
  for (const [id, { condition }] of Object.entries(resources)) {
    if (!condition) continue
    const [parameter] = condition.param_equals
    const at = `resources.${id}.condition`
    if (!parameters.has(parameter)) problems.push(noParameter(at, parameter))
    // Without a value, the condition would be met.
    else if (parameters.get(parameter)?.use_previous_value)
      problems.push({
        code: 'INVALID_VALUE',
        path: at,
        message: `references ${parameter}, which has use_previous_value and may have no value`,
      })
    else used.push(parameter)
  }
  return { used, problems }
}

const declaredResource = (
  logical_id: string,
  type: TemplateType,
  { properties = {}, deletion_policy, ignore_fields = [], prevent_destroy = false }: ResourceDeclaration,
  deferred: ReadonlySet<string>,
): DeclaredResource => ({
  logical_id,
  type,
  properties,
  deferred,
  retain: deletion_policy === 'retain',
  ignored: new Set(ignore_fields),
  prevent_destroy,
})

const noResource = (path: string, name: string): Problem => ({
  code: 'NOT_FOUND',
  path,
  message: `references ${name.slice(0, 128)}, which is not declared`,
})

const noParameter = (path: string, name: string): Problem => ({
  code: 'NOT_FOUND',
  path,
  message: `references the parameter ${name.slice(0, 128)}, which is not declared`,
})

const unknownParameters = (
  known: ReadonlyMap<string, Parameter>,
  given: Readonly<Record<string, string>> = {},
): Problem[] =>
  Object.keys(given)
    .filter(name => !known.has(name))
    .map(name => noParameter(`parameters.${name}`, name))

/** Returns the values of parameters: given, or else default. An empty string counts as omitted. */
const valuesOf = (
  known: ReadonlyMap<string, Parameter>,
  given: Readonly<Record<string, string>> = {},
): Map<string, string> =>
  new Map(
    [...known].flatMap(([name, { default: standard }]): [string, string][] => {
      const value = (Object.hasOwn(given, name) ? given[name] : '') || standard
      return value === undefined || value === '' ? [] : [[name, value]]
    }),
  )

/** Returns the characters that parameters add to the expressions of a value: a short template may repeat a long text. */
function expandedLength(value: unknown, values: ReadonlyMap<string, string>): number {
  const lengthOf = (name: string): number => values.get(name)?.length ?? 0
  return expressionsIn(value).reduce((sum, { expression: { kind, text } }) => {
    const names = kind === 'param' ? [text] : kind === 'sub' ? substitutedNames(text) : []
    return names.reduce((all, name) => all + lengthOf(name), sum)
  }, 0)
}

type Names = {
  parameters: ReadonlyMap<string, Parameter>
  logicalIds: ReadonlySet<string>
  types: ReadonlyMap<string, TemplateType>
  used: Set<string>
}

const IMPORT = /^(.{1,200})\.([^.]{1,128})$/

/** Validates the expressions of a value. Returns the logical IDs that they reference. */
function checkExpressions(
  value: unknown,
  at: string,
  names: Names,
  problems: Problem[],
  allowsAttributes: boolean,
): string[] {
  const { parameters, logicalIds, types, used } = names
  const referenced: string[] = []
  const addResource = (name: string, path: string): void => {
    if (logicalIds.has(name)) referenced.push(name)
    else problems.push(noResource(path, name))
  }
  const check = ({ kind, text }: Expression, path: string): void => {
    if (kind === 'ref') addResource(text, path)
    else if (kind === 'param') {
      if (parameters.has(text)) used.add(text)
      else problems.push(noParameter(path, text))
    } else if (kind === 'sub') {
      for (const name of new Set(substitutedNames(text)))
        if (parameters.has(name)) used.add(name)
        else addResource(name, path)
    } else if (kind === 'import') {
      if (!IMPORT.test(text))
        problems.push({
          code: 'INVALID_VALUE',
          path,
          message: 'must be <formation name>.<output name>',
        })
    } else if (!allowsAttributes)
      problems.push({ code: 'INVALID_VALUE', path, message: 'ref_attr is allowed only in outputs' })
    else {
      const [name, attribute = ''] = text.split('.', 2)
      addResource(name, path)
      const type = types.get(name)
      if (type?.attributes && !type.attributes.has(attribute))
        problems.push({
          code: 'INVALID_VALUE',
          path,
          message: `${type.name} has no attribute ${attribute.slice(0, 100)}`,
        })
    }
  }
  for (const { expression, path } of expressionsIn(value, at)) check(expression, path)
  return referenced
}

/** Returns the problems of the known properties of a resource. */
async function checkProperties(
  services: Services,
  { logical_id, type, properties, ignored }: DeclaredResource,
  known: {
    values: ReadonlyMap<string, string>
    types: ReadonlyMap<string, TemplateType>
    existing: ReadonlySet<string> | null
    tenant: string
  },
): Promise<Problem[]> {
  const at = `resources.${logical_id}.properties`
  const placeholders = type.writeOnly
    .filter(name => isPlaceholder(properties[name]))
    .map(name => ({
      code: 'INVALID_VALUE',
      path: `${at}.${name}`,
      message: 'is a placeholder for a hidden value; set a value or omit the property',
    }))
  if (placeholders.length > 0) return placeholders
  const unknown = [...ignored].filter(name => !type.properties.has(name))
  if (unknown.length > 0)
    return unknown.map(name => ({
      code: 'INVALID_VALUE',
      path: `resources.${logical_id}.ignore_fields`,
      message: `contains ${name.slice(0, 100)}, which is not a property of ${type.name}`,
    }))
  const example = exampleScope(known)
  const unknownPaths = new Set(
    expressionsIn(properties, at).flatMap(({ expression, path }) =>
      hasKnownValue(expression, known.values) ? [] : [path],
    ),
  )
  const { problems } = await resolveProperties(services, type, properties, example, {
    at,
    complete: !known.existing?.has(logical_id),
    tenant: known.tenant,
  })
  // Problems of example values are ignored, and of a whole resource that has some.
  return problems.filter(({ path }) => !(path === at && unknownPaths.size > 0) && !isBelowAny(path, unknownPaths))
}

const hasKnownValue = ({ kind, text }: Expression, values: ReadonlyMap<string, string>): boolean =>
  kind === 'param' ? values.has(text) : kind === 'sub' && substitutedNames(text).every(name => values.has(name))

/** Returns a scope with known values, and example values for the others, such as an ID of the type of a `ref`. */
function exampleScope({
  values,
  types,
}: {
  values: ReadonlyMap<string, string>
  types: ReadonlyMap<string, TemplateType>
}): TemplateScope {
  const text = (text: string): ExpressionMeaning => ({ text })
  return scopeOf({
    parameter: name =>
      values.has(name) ? text(values.get(name) as string) : types.has(name) ? undefined : text('parameter'),
    resource: name => text(types.get(name)?.exampleId ?? 'resource'),
    imported: () => text('imported'),
    attribute: () => text('attribute'),
  })
}
