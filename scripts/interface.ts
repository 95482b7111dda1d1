import fs from 'node:fs'
import path from 'node:path'
import '#config.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { compareReleases } from '#core/base/release.ts'
import { declaredNames, loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import verbs from '#operator/verbs.json' with { type: 'json' }

/**
 * The interface of a release, which callers and operators can notice: a reduced OpenAPI document, and names. It is compared as
 * lines of text, each of which is one thing. `node scripts/interface.ts` prints the interface of this checkout.
 */

type Schema = {
  $ref?: string
  type?: string | string[]
  format?: string
  properties?: Record<string, Schema>
  required?: string[]
  items?: Schema
  additionalProperties?: Schema | boolean
  allOf?: Schema[]
  anyOf?: Schema[]
  oneOf?: Schema[]
  enum?: unknown[]
  const?: unknown
  default?: unknown
  'x-deprecated'?: { removal: string }
}
type Parameter = {
  $ref?: string
  name?: string
  in?: string
  required?: boolean
  schema?: Schema
  'x-deprecated'?: { removal: string }
}
type Content = { $ref?: string; content?: Record<string, { schema?: Schema }> }
type Operation = {
  parameters?: Parameter[]
  requestBody?: Content
  responses?: Record<string, Content>
  'x-deprecated'?: { removal: string }
}
export type Document = {
  paths: Record<string, Record<string, Operation>>
  components: {
    schemas: Record<string, Schema>
    parameters: Record<string, Parameter>
    responses?: Record<string, Content>
  }
}

/** What a release has besides its description. */
export type Names = {
  errors: string[]
  events: string[]
  settings: { name: string; default: string | null }[]
  commands: string[]
}

export type Interface = Names & { document: Document }

const nameIn = (reference: string): string => reference.split('/').at(-1) as string

/** Keywords of schemas that are compared; those with schemas below them are walked. */
const KEYWORDS = ['$ref', 'type', 'format', 'required', 'enum', 'const', 'default', 'x-deprecated']
const LISTS = ['allOf', 'anyOf', 'oneOf'] as const

function reducedSchema(schema: Schema): Schema {
  const kept = Object.entries(schema).filter(([key]) => KEYWORDS.includes(key))
  const lists = LISTS.flatMap(key => (schema[key] ? [[key, schema[key].map(reducedSchema)]] : []))
  const { properties, items, additionalProperties: others } = schema
  return {
    ...Object.fromEntries([...kept, ...lists]),
    ...(properties && { properties: mapped(properties, reducedSchema) }),
    ...(items && { items: reducedSchema(items) }),
    ...(typeof others === 'object' && { additionalProperties: reducedSchema(others) }),
  }
}

const mapped = <V, R>(values: Record<string, V>, map: (value: V) => R): Record<string, R> =>
  Object.fromEntries(Object.entries(values).map(([key, value]) => [key, map(value)]))

/** Returns the part of a document that is compared: without texts, examples, extensions and refusals. */
export function reducedDocument({ paths, components }: Document): Document {
  const parameterOf = ({ $ref, name, in: place, required, schema = {}, 'x-deprecated': deprecated }: Parameter) =>
    $ref
      ? { $ref }
      : {
          name,
          in: place,
          required,
          schema: reducedSchema(deprecated ? { ...schema, 'x-deprecated': deprecated } : schema),
        }
  const contentOf = ({ $ref, content = {} }: Content): Content =>
    $ref ? { $ref } : { content: mapped(content, ({ schema }) => (schema ? { schema: reducedSchema(schema) } : {})) }
  const operationOf = ({
    parameters,
    requestBody,
    responses = {},
    'x-deprecated': deprecated,
  }: Operation): Operation => ({
    ...(deprecated && { 'x-deprecated': deprecated }),
    ...(parameters && { parameters: parameters.map(parameterOf) }),
    ...(requestBody && { requestBody: contentOf(requestBody) }),
    responses: mapped(
      Object.fromEntries(Object.entries(responses).filter(([status]) => status.startsWith('2'))),
      contentOf,
    ),
  })
  return {
    paths: mapped(paths, methods => mapped(methods, operationOf)),
    components: {
      schemas: mapped(components.schemas, reducedSchema),
      parameters: mapped(components.parameters, parameterOf),
      responses: mapped(components.responses ?? {}, contentOf),
    },
  }
}

/** Returns an interface as text, with a line for each path, component and list of names. */
export function interfaceText({ document, ...names }: Interface): string {
  const { paths, components } = document
  const object = (values: object): string =>
    `{\n${Object.entries(values)
      .map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`)
      .join(',\n')}\n}`
  const { schemas, parameters, responses = {} } = components
  const described = `{"paths":${object(paths)},"components":{"schemas":${object(schemas)},"parameters":${object(parameters)},"responses":${object(responses)}}}`
  return `${object(names).slice(0, -2)},\n"document":${described}\n}\n`
}

/** Types of each field within a schema, whether it is required, its default, and the release that removes it if it is deprecated. */
type Field = { types: Set<string>; isRequired: boolean; value?: unknown; removal?: string }
type Fields = Map<string, Field>

/** Adds a field to the fields of a schema: required if it is in each place. */
function addField(fields: Fields, path: string, { types, isRequired, value, removal }: Field): void {
  const field = fields.get(path) ?? { types: new Set<string>(), isRequired: true }
  fields.set(path, field)
  for (const type of types) field.types.add(type)
  field.isRequired &&= isRequired
  field.value ??= value
  field.removal ??= removal
}

/** Adds the fields of alternatives: required if each alternative that has fields, or is an object, requires them. */
function addAlternatives(
  schemas: readonly Schema[],
  document: Document,
  fields: Fields,
  at: string,
  within: readonly string[],
): void {
  const alternatives = schemas.flatMap(schema => {
    const own: Fields = new Map()
    addFields(schema, document, own, at, within)
    return own.size > 0 || schema.type === 'object' ? [own] : []
  })
  const parentOf = (path: string) => path.slice(0, Math.max(0, path.lastIndexOf('.')))
  for (const own of alternatives)
    for (const [path, field] of own) {
      const parent = parentOf(path)
      const isMissing = alternatives.some(each => !each.has(path) && (parent === at || each.has(parent)))
      addField(fields, path, { ...field, isRequired: field.isRequired && !isMissing })
    }
}

/** Adds the fields of a schema, and those below them, to `fields`. `within`: references that lead to the schema. */
function addFields(schema: Schema, document: Document, fields: Fields, at: string, within: readonly string[]): void {
  const { $ref, items, additionalProperties: others, properties = {}, required = [], allOf = [] } = schema
  if ($ref) {
    const target = document.components.schemas[nameIn($ref)]
    if (target && !within.includes($ref)) addFields(target, document, fields, at, [...within, $ref])
    return
  }
  for (const part of [...allOf, items, typeof others === 'object' ? others : undefined])
    if (part) addFields(part, document, fields, at, within)
  for (const alternatives of [schema.anyOf, schema.oneOf])
    if (alternatives) addAlternatives(alternatives, document, fields, at, within)
  for (const [name, property] of Object.entries(properties)) {
    const path = at === '' ? name : `${at}.${name}`
    addField(fields, path, {
      types: new Set(typesOf(property, document, within)),
      isRequired: required.includes(name),
      value: property.default,
      removal: property['x-deprecated']?.removal,
    })
    addFields(property, document, fields, path, within)
  }
}

/** Returns the types of a schema; for an enumeration its values. */
function typesOf(schema: Schema, document: Document, within: readonly string[] = []): string[] {
  const { $ref, items, type, format } = schema
  if ($ref) {
    const target = document.components.schemas[nameIn($ref)]
    return target && !within.includes($ref) ? typesOf(target, document, [...within, $ref]) : ['object']
  }
  const branches = LISTS.flatMap(key => schema[key] ?? [])
  if (branches.length > 0) return branches.flatMap(each => typesOf(each, document, within))
  if (schema.enum) return schema.enum.map(each => JSON.stringify(each))
  if (schema.const !== undefined) return [JSON.stringify(schema.const)]
  if (items) return typesOf(items, document, within).map(each => `${each}[]`)
  const types = type === undefined ? ['any'] : [type].flat()
  return types.map(each => (each === 'string' && format ? format : each))
}

const UNTIL = 'deprecated until'

/** Returns the lines of a schema, one for each field. */
function fieldLines(prefix: string, schema: Schema | undefined, document: Document): string[] {
  const fields: Fields = new Map()
  if (schema) addFields(schema, document, fields, '', [])
  return [...fields].map(([path, { types, isRequired, value, removal }]) =>
    [
      `${prefix} ${path}`,
      [...types].sort().join('|'),
      ...(isRequired ? ['required'] : []),
      ...(value === undefined ? [] : [`default ${JSON.stringify(value)}`]),
      ...(removal ? [`${UNTIL} ${removal}`] : []),
    ].join(' '),
  )
}

function contentOf(at: Content, document: Document): Schema | undefined {
  const { content } = at.$ref ? (document.components.responses?.[nameIn(at.$ref)] ?? {}) : at
  return content?.['application/json']?.schema
}

/** Returns the lines of an operation. */
function operationLines(name: string, operation: Operation, document: Document): string[] {
  const parameters = (operation.parameters ?? []).map(each =>
    each.$ref ? document.components.parameters[nameIn(each.$ref)] : each,
  )
  const sent = parameters.filter(each => each.in !== 'path')
  const query: Schema = {
    properties: Object.fromEntries(sent.map(each => [each.name, each.schema ?? {}])),
    required: sent.flatMap(each => (each.required ? [each.name ?? ''] : [])),
  }
  const answers = Object.entries(operation.responses ?? {}).filter(([status]) => status.startsWith('2'))
  return [
    `operation ${name}`,
    ...(operation['x-deprecated'] ? [`deprecation ${name} ${UNTIL} ${operation['x-deprecated'].removal}`] : []),
    ...fieldLines(`parameter ${name}`, query, document),
    ...fieldLines(`body ${name}`, contentOf(operation.requestBody ?? {}, document), document),
    ...answers.flatMap(([, answer]) => fieldLines(`answer ${name}`, contentOf(answer, document), document)),
  ]
}

/** Returns the sorted lines of an interface. */
export function interfaceLines({ document, errors, events, settings, commands }: Interface): string[] {
  const operations = Object.entries(document.paths).flatMap(([at, methods]) =>
    Object.entries(methods).flatMap(([method, operation]) =>
      operationLines(`${method.toUpperCase()} ${at.replace('/api/v1', '')}`, operation, document),
    ),
  )
  const lines = [
    ...operations,
    ...errors.map(name => `error ${name}`),
    ...events.map(name => `event ${name}`),
    ...settings.map(each => `setting ${each.name} ${each.default ?? ''}`.trimEnd()),
    ...commands.map(name => `command ${name}`),
  ]
  return [...new Set(lines)].sort()
}

/** A field of an operation: its line without type, the operation, its path and its type. */
function fieldOf(line: string): { key: string; operation: string; path: string; type: string } | null {
  const [kind, method, at, path, ...type] = line.split(' ')
  if (!['parameter', 'body', 'answer'].includes(kind)) return null
  return { key: [kind, method, at, path].join(' '), operation: `${method} ${at}`, path, type: type.join(' ') }
}

const valuesOf = (type: string): string[] => [...type.matchAll(/"([^"]*)"/g)].map(([, value]) => value)

/** A difference of two interfaces: a line that was added (`+`), removed (`-`) or changed (`~`), and the words that notes must contain. */
type Difference = { text: string; mentions: string[] }

/** Returns the values of enumerations that only one of two types has; otherwise the name of the field. */
function mentionsOf(path: string, before: string, after: string): string[] {
  const [earlier, later] = [before, after].map(type => type.replace(/ default .*/, ''))
  const values = [
    ...valuesOf(later).filter(each => !valuesOf(earlier).includes(each)),
    ...valuesOf(earlier).filter(each => !valuesOf(later).includes(each)),
  ]
  return values.length > 0 ? values : [path.split('.').at(-1) as string]
}

/** Returns the differences of the fields of operations that both interfaces have. */
function fieldDifferences(before: readonly string[], after: readonly string[]): Difference[] {
  const fieldsOf = (lines: readonly string[]) =>
    new Map(lines.flatMap(line => fieldOf(line) ?? []).map(field => [field.key, field]))
  const operationsOf = (lines: readonly string[]) =>
    new Set(lines.filter(line => line.startsWith('operation ')).map(line => line.slice('operation '.length)))
  const [earlier, later] = [fieldsOf(before), fieldsOf(after)]
  const [operationsBefore, operationsAfter] = [operationsOf(before), operationsOf(after)]
  const isInBoth = (operation: string) => operationsBefore.has(operation) && operationsAfter.has(operation)
  const isBelow = (key: string, fields: typeof earlier) => {
    const parent = key.slice(0, key.lastIndexOf('.'))
    return key.includes('.') && !fields.has(parent)
  }
  const found: { operation: string; change: string; mentions: string[] }[] = []
  for (const { key, operation, path, type } of later.values()) {
    const old = earlier.get(key)
    if (!isInBoth(operation) || old?.type === type || (!old && isBelow(key, earlier))) continue
    const name = path.split('.').at(-1) as string
    found.push(
      old
        ? { operation, change: `~ ${key}: ${old.type} -> ${type}`, mentions: mentionsOf(path, old.type, type) }
        : { operation, change: `+ ${key} ${type}`.trimEnd(), mentions: [name] },
    )
  }
  for (const { key, operation, path, type } of earlier.values())
    if (isInBoth(operation) && !later.has(key) && !isBelow(key, later))
      found.push({
        operation,
        change: `- ${key} ${type}`.trimEnd(),
        mentions: [path.split('.').at(-1) as string],
      })
  // A field of many operations is one difference.
  const isSame = ({ operation, change }: (typeof found)[number]) => change.replace(operation, '')
  return [...Map.groupBy(found, isSame).values()].map(([{ change, mentions }, ...others]) => ({
    text: others.length === 0 ? change : `${change} (and ${others.length} more operations)`,
    mentions,
  }))
}

/** Returns the differences of two interfaces. The parts of a new or removed operation or field are left out. */
export function differences(before: readonly string[], after: readonly string[]): Difference[] {
  const [earlier, later] = [new Set(before), new Set(after)]
  const whole = (sign: string, lines: readonly string[], others: ReadonlySet<string>): Difference[] =>
    lines
      .filter(line => !others.has(line) && fieldOf(line) === null)
      .map(line => {
        const [kind, ...words] = line.split(' ')
        const mention =
          kind === 'command' ? words.join(' ') : kind === 'operation' || kind === 'deprecation' ? words[1] : words[0]
        return { text: `${sign} ${line}`, mentions: [mention] }
      })
  return [...whole('+', after, earlier), ...whole('-', before, later), ...fieldDifferences(before, after)]
}

function isMentioned(mention: string, notes: string): boolean {
  if (!mention.startsWith('/'))
    return new RegExp(`(?<![\\w-])${mention.replaceAll(/[^\w-]/g, '\\$&')}(?![\\w-])`).test(notes)
  // An operation is mentioned with its path or the start of it; the names of parameters do not matter.
  const withoutNames = (text: string) => text.replaceAll(/\{\w+\}/g, '{}')
  const parts = withoutNames(mention).split('/').slice(1)
  return parts.some((_, index) => withoutNames(notes).includes(`/${parts.slice(0, index + 1).join('/')}\``))
}

/** Returns the deprecated operations and fields that a release should not have any more. */
export const overdue = (lines: readonly string[], version: string): string[] =>
  lines.filter(line => {
    const removal = / deprecated until (\S+)$/.exec(line)?.[1]
    return removal !== undefined && compareReleases(removal, version) <= 0
  })

/** Returns the differences that the notes of a release do not mention. */
export const unmentioned = (before: readonly string[], after: readonly string[], notes: string): string[] =>
  differences(before, after)
    .filter(({ mentions }) => !mentions.every(each => isMentioned(each, notes)))
    .map(({ text }) => text)

/** Returns the interface of this checkout, which must be built. */
export function currentInterface(): Interface {
  const file = path.resolve(import.meta.dirname, '../client/openapi.json')
  loadModules(modules)
  const { errors, events } = declaredNames()
  return {
    errors: [...errors].sort(),
    events: [...events].sort(),
    settings: settingRows().map(({ name, default: value }) => ({ name, default: value })),
    commands: Object.keys(verbs),
    document: reducedDocument(JSON.parse(fs.readFileSync(file, 'utf8'))),
  }
}

if (process.argv[1] === import.meta.filename) process.stdout.write(interfaceText(currentInterface()))
