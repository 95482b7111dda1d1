import type { Problem } from '../../core/api/errors.ts'
import type { JsonObject } from '../../core/api/flatten.ts'
import { validationProblems } from '../../core/api/validate.ts'
import type { Services } from '../../core/process/services.ts'
import { findType } from '../types/find.ts'
import type { TemplateType } from '../types/model.ts'
import { dependencyOrder } from './dependencies.ts'
import {
  type Expression,
  type ExpressionMeaning,
  expressionsIn,
  namesIn,
  scopeOf,
  type TemplateScope,
} from './expressions.ts'
import { MAX_BYTES, parseTemplate } from './parse.ts'
import { fitProperty, isBelow } from './properties.ts'
import { type Parameter, type ResourceDeclaration, TemplateShape } from './shape.ts'

/** One resource of a template, with what it depends on. */
export type DeclaredResource = {
  logical_id: string
  type: TemplateType
  /** As authored. */
  properties: JsonObject
  depends_on: readonly string[]
  retain: boolean
  ignored: ReadonlySet<string>
  prevent_destroy: boolean
}

export type CompiledTemplate = {
  /** The template as authored, an object. */
  template: JsonObject
  /** The resources whose conditions hold, each behind those that it depends on. */
  declared: readonly DeclaredResource[]
  /** The others. */
  dormant: readonly { logical_id: string; type: TemplateType; properties: JsonObject }[]
  parameters: ReadonlyMap<string, Parameter>
  /** The values that parameters have, by default or as given. */
  values: ReadonlyMap<string, string>
  outputs: Readonly<Record<string, unknown>>
  metadata: unknown
  /** Old names by new ones: lines of earlier renames may stay. */
  moved: ReadonlyMap<string, readonly string[]>
}

export type Compilation = {
  compiled: CompiledTemplate | null
  problems: Problem[]
  /** Parameters that are used and have no value. */
  missing: string[]
  warnings: Problem[]
}

type Options = {
  parameters?: Readonly<Record<string, string>>
  /** Resources that exist: what they require was given when they were created. Null for a formation to come. */
  existing: ReadonlySet<string> | null
}

/** What a write-only value is shown as. */
export const NO_ECHO = Object.freeze({ no_echo: true })

const isPlaceholder = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.keys(value).length === 1 && 'no_echo' in value

const failed = (problems: Problem[]): Compilation => ({ compiled: null, problems, missing: [], warnings: [] })

/** Reads a template and says all that is wrong with it before anything is done. Nothing is read from the database. */
export async function compileTemplate(services: Services, given: unknown, options: Options): Promise<Compilation> {
  const parsed = parseTemplate(given)
  if ('problem' in parsed) return failed([parsed.problem])
  const template = parsed.value
  const hidden = protoKeys(template)
  if (hidden.length > 0) return failed(hidden)
  const misshapen = validationProblems(TemplateShape, template)
  if (misshapen.length > 0) return failed(misshapen)
  return compile(services, template as TemplateShape, options)
}

/** Keys that objects have by themselves, which readers of JSON drop or follow. */
function protoKeys(value: unknown): Problem[] {
  const problems: Problem[] = []
  const walk = (node: unknown, path: string): void => {
    if (typeof node !== 'object' || node === null || problems.length > 0) return
    for (const [key, item] of Object.entries(node)) {
      const at = Array.isArray(node) ? `${path}[${key}]` : path === '' ? key : `${path}.${key}`
      if (key === '__proto__')
        problems.push({ code: 'INVALID_VALUE', path: at, message: 'is no key that a template may have' })
      walk(item, at)
    }
  }
  walk(value, '')
  return problems
}

/** Whether the condition of a resource holds; a parameter without a value says nothing against it. */
const holds = ({ condition }: ResourceDeclaration, values: ReadonlyMap<string, string>): boolean => {
  if (!condition) return true
  const [parameter, wanted] = condition.param_equals
  return (values.get(parameter) ?? wanted) === wanted
}

async function compile(services: Services, template: TemplateShape, options: Options): Promise<Compilation> {
  const parameters = new Map(Object.entries(template.parameters ?? {}))
  const problems = unknownParameters(parameters, options.parameters)
  const values = valuesOf(parameters, options.parameters)
  const resources = Object.entries(template.resources).filter(([, resource]) => holds(resource, values))
  const types = new Map<string, TemplateType>()
  for (const [id, { type: name }] of resources) {
    const type = findType(services, name)
    if (type) types.set(id, type)
    else
      problems.push({
        code: 'INVALID_VALUE',
        path: `resources.${id}.type`,
        message: `${name.slice(0, 100)} is no type of resources`,
      })
  }
  const { outputs = {}, metadata = null } = template
  const given = [resources.map(([, { properties }]) => properties), outputs, metadata]
  if (resolvedLength(given, values) > MAX_BYTES)
    return failed([
      {
        code: 'TOO_LARGE',
        path: 'parameters',
        message: `make more than ${MAX_BYTES} characters of the expressions that name them`,
      },
    ])
  const logicalIds = new Set(resources.map(([id]) => id))
  const used = new Set<string>()
  const names = { parameters, logicalIds, types, used }
  const depends = new Map<string, string[]>()
  for (const [id, resource] of resources) {
    const at = `resources.${id}`
    const found = checkExpressions(resource.properties ?? {}, `${at}.properties`, names, problems, false)
    const wanted = [resource.depends_on ?? []].flat()
    wanted.forEach((other, index) => {
      if (!logicalIds.has(other)) problems.push(noResource(`${at}.depends_on[${index}]`, other))
    })
    depends.set(
      id,
      [...new Set([...found, ...wanted])].filter(other => logicalIds.has(other)),
    )
  }
  for (const [id, { condition }] of Object.entries(template.resources)) {
    if (!condition) continue
    const [parameter] = condition.param_equals
    const at = `resources.${id}.condition`
    if (!parameters.has(parameter)) problems.push(noParameter(at, parameter))
    // Left out, it would be as if the condition held.
    else if (parameters.get(parameter)?.use_previous_value)
      problems.push({ code: 'INVALID_VALUE', path: at, message: `names ${parameter}, whose value may be left out` })
    else used.add(parameter)
  }
  checkExpressions(outputs, 'outputs', names, problems, true)
  checkExpressions(metadata, 'metadata', names, problems, false)
  const { order, cycle } = dependencyOrder(depends)
  if (cycle.length > 0)
    problems.push({
      code: 'CYCLE',
      path: 'resources',
      message: `depend on each other: ${cycle.slice(0, 20).join(', ')}`,
    })
  const byId = new Map(resources)
  const declared = order.flatMap((id): DeclaredResource[] => {
    const {
      properties = {},
      deletion_policy,
      ignore_fields = [],
      prevent_destroy = false,
    } = byId.get(id) as ResourceDeclaration
    const type = types.get(id)
    return type
      ? [
          {
            logical_id: id,
            type,
            properties,
            depends_on: depends.get(id) ?? [],
            retain: deletion_policy === 'retain',
            ignored: new Set(ignore_fields),
            prevent_destroy,
          },
        ]
      : []
  })
  for (const each of declared)
    problems.push(...(await checkProperties(services, each, { values, types, existing: options.existing })))
  const dormant = Object.entries(template.resources).flatMap(([logical_id, { type: name, properties = {} }]) => {
    const type = logicalIds.has(logical_id) ? undefined : findType(services, name)
    return type ? [{ logical_id, type, properties }] : []
  })
  const missing = [...used].filter(
    name => !values.has(name) && !(options.existing !== null && parameters.get(name)?.use_previous_value),
  )
  const renames = Map.groupBy(Object.entries(template.moved ?? {}), ([, now]) => now)
  const moved = new Map([...renames].map(([now, pairs]) => [now, pairs.map(([old]) => old)]))
  return {
    compiled:
      problems.length > 0
        ? null
        : { template: template as JsonObject, declared, dormant, parameters, values, outputs, metadata, moved },
    problems,
    missing,
    warnings: [...parameters]
      .filter(([, { default: standard }]) => standard === undefined)
      .map(([name]) => ({ code: 'REQUIRED', path: `parameters.${name}`, message: 'has no default and must be given' })),
  }
}

const noResource = (path: string, name: string): Problem => ({
  code: 'NOT_FOUND',
  path,
  message: `names ${name.slice(0, 128)}, which the template does not declare`,
})

const noParameter = (path: string, name: string): Problem => ({
  code: 'NOT_FOUND',
  path,
  message: `names the parameter ${name.slice(0, 128)}, which the template does not declare`,
})

const unknownParameters = (
  known: ReadonlyMap<string, Parameter>,
  given: Readonly<Record<string, string>> = {},
): Problem[] =>
  Object.keys(given)
    .filter(name => !known.has(name))
    .map(name => noParameter(`parameters.${name}`, name))

/** An empty text counts as not given. */
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

/** Characters that the parameters in expressions of a value come to: a short template may name a long text often. */
function resolvedLength(value: unknown, values: ReadonlyMap<string, string>): number {
  const lengthOf = (name: string): number => values.get(name)?.length ?? 0
  return expressionsIn(value).reduce((sum, { expression: { kind, text } }) => {
    const names = kind === 'param' ? [text] : kind === 'sub' ? namesIn(text) : []
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

/** Checks what the expressions of a value name. Returns the resources among that. */
function checkExpressions(
  value: unknown,
  at: string,
  names: Names,
  problems: Problem[],
  attributes: boolean,
): string[] {
  const { parameters, logicalIds, types, used } = names
  const found: string[] = []
  const resource = (name: string, path: string): void => {
    if (logicalIds.has(name)) found.push(name)
    else problems.push(noResource(path, name))
  }
  const check = ({ kind, text }: Expression, path: string): void => {
    if (kind === 'ref') resource(text, path)
    else if (kind === 'param') {
      if (parameters.has(text)) used.add(text)
      else problems.push(noParameter(path, text))
    } else if (kind === 'sub') {
      for (const name of namesIn(text))
        if (parameters.has(name)) used.add(name)
        else resource(name, path)
    } else if (kind === 'import') {
      if (!IMPORT.test(text))
        problems.push({
          code: 'INVALID_VALUE',
          path,
          message: 'must be the name of a formation, a dot and the name of an output',
        })
    } else if (!attributes) problems.push({ code: 'INVALID_VALUE', path, message: 'ref_attr is for outputs only' })
    else {
      const [name, attribute = ''] = text.split('.', 2)
      resource(name, path)
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
  return found
}

/** What is wrong with the properties of a resource as far as they are known. */
async function checkProperties(
  services: Services,
  { logical_id, type, properties, ignored }: DeclaredResource,
  known: {
    values: ReadonlyMap<string, string>
    types: ReadonlyMap<string, TemplateType>
    existing: ReadonlySet<string> | null
  },
): Promise<Problem[]> {
  const at = `resources.${logical_id}.properties`
  const placeholders = type.writeOnly
    .filter(name => isPlaceholder(properties[name]))
    .map(name => ({
      code: 'INVALID_VALUE',
      path: `${at}.${name}`,
      message: 'stands for a value that is not shown; give the value, or leave the property out',
    }))
  if (placeholders.length > 0) return placeholders
  const unknown = [...ignored].filter(name => !type.properties.has(name))
  if (unknown.length > 0)
    return unknown.map(name => ({
      code: 'INVALID_VALUE',
      path: `resources.${logical_id}.ignore_fields`,
      message: `${name.slice(0, 100)} is no property of ${type.name}`,
    }))
  const example = stand(known)
  const unsure = expressionsIn(properties, at).flatMap(({ expression, path }) =>
    isSure(expression, known.values) ? [] : [path],
  )
  const { problems } = await fitProperty(services, type, properties, example, {
    at,
    complete: !known.existing?.has(logical_id),
  })
  // What stands in for a value that is not known says nothing about it.
  return problems.filter(({ path }) => !unsure.some(each => isBelow(path, each)))
}

const isSure = ({ kind, text }: Expression, values: ReadonlyMap<string, string>): boolean =>
  kind === 'param' ? values.has(text) : kind === 'sub' && namesIn(text).every(name => values.has(name))

/** Values as known, and texts in place of the others, such as an id of the type that a `ref` names. */
function stand({
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
