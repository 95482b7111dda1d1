import type { JsonObject } from '#core/api/flatten.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { isSameValue } from '../plans/live.ts'
import type { FormationRow } from '../records/model.ts'
import { cyclicReferences, deferredOrder, dependencyOrder, type PropertyReferences } from '../template/dependencies.ts'
import { expressionOf } from '../template/expressions.ts'
import type { BuiltInType } from '../types/model.ts'
import { isBelow } from '../types/properties.ts'
import { idsIn, replaceIds } from './ids.ts'
import { type ExportSelection, type SelectedResource, selectResources } from './select.ts'

/** Export of existing resources as a template. */

const SECRET = /\{\{secret:([a-z_]+_[0-9a-hjkmnp-tv-z]{26})\}\}/g

type Parameter = { description: string; no_echo?: boolean }

export type ExportedResource = { template: JsonObject; parameters: Record<string, string>; warnings: string[] }

export async function exportProject(
  services: Services,
  caller: Caller,
  projectId: string,
  selection: ExportSelection,
  allowFormation: (row: FormationRow) => void,
): Promise<ExportedResource> {
  const selected = await selectResources(services, caller, projectId, selection, allowFormation)
  const warnings: string[] = []
  const drafts = new Map(selected.map(each => [each.id, { ...each, ...draftOf(each) }]))
  const { order, broken } = orderDrafts(drafts)
  const names = new UniqueNames()
  const logical = new Map(order.map(id => [id, names.add(logicalIdOf(drafts.get(id) as SelectedResource))]))
  const parameters = new Parameters(names)
  const resources: Record<string, JsonObject> = {}
  for (const id of order) {
    const { type, properties, secrets, hidden } = drafts.get(id) as Draft
    const own = logical.get(id) as string
    const reference = (otherId: string): JsonObject | null => {
      const target = logical.get(otherId)
      if (target === undefined || otherId === id) return null
      if (!broken.has(`${id} ${otherId}`)) return { ref: target }
      warnings.push(`${own} and ${target} reference each other: ${own} takes the ID of ${target} as a parameter`)
      return { param: parameters.of(otherId, target) }
    }
    const exported = Object.entries(properties).flatMap(([name, value]): [string, unknown][] => {
      if (!hasExpressions(value)) return [[name, withReferences(value, reference, parameters)]]
      warnings.push(`${own}.${name} is omitted: part of its value would be read as an expression`)
      return []
    })
    for (const name of hidden)
      warnings.push(
        `${own}.${name} is omitted: its value is write-only and not a string, so it cannot become a parameter`,
      )
    const secretParameters = secrets.map((name): [string, JsonObject] => [
      name,
      { param: parameters.add(joinWords(own, name), { description: `${name} of ${own}`, no_echo: true }) },
    ])
    resources[own] = { type: type.name, properties: Object.fromEntries([...exported, ...secretParameters]) }
    for (const name of await refusedProperties(services, type, properties, secrets)) {
      delete (resources[own].properties as JsonObject)[name]
      warnings.push(`${own}.${name} is omitted: its current value is not valid as input`)
    }
  }
  const declared = parameters.declared()
  return {
    template: { ...(Object.keys(declared).length > 0 ? { parameters: declared } : {}), resources },
    parameters: parameters.values(),
    warnings: warnings.map(warning => replaceIds(warning, id => logical.get(id) ?? id)),
  }
}

/** `secrets` are write-only strings, `hidden` other write-only values. */
type Draft = SelectedResource & { properties: JsonObject; secrets: string[]; hidden: string[] }

/** Returns the properties of a resource that differ from their defaults, and the names of the write-only ones. */
function draftOf({ type, live }: SelectedResource): Omit<Draft, keyof SelectedResource> {
  const { defaults, hides } = type.declared
  const writeOnly = (live.row && hides?.(live.row)) ?? type.writeOnly
  const properties: JsonObject = {}
  const secrets: string[] = []
  const hidden: string[] = []
  for (const [name, { required, schema }] of type.properties) {
    const value = live.values[name]
    if (type.writeOnly.includes(name) ? writeOnly.includes(name) : required && value === undefined)
      (isText(schema) ? secrets : hidden).push(name)
    else if (value !== undefined && value !== null && (required || !isDefault(value, defaults[name] ?? schema.default)))
      properties[name] = value
  }
  return { properties, secrets, hidden }
}

const isText = ({ type, anyOf = [] }: JsonObject): boolean => type === 'string' || (anyOf as JsonObject[]).some(isText)

const isDefault = (value: unknown, standard: unknown): boolean =>
  isSameValue(value, standard) || (typeof value === 'object' && Object.keys(value as object).length === 0)

/** Returns the optional properties whose current values the operations of the type refuse as input. */
async function refusedProperties(
  services: Services,
  type: BuiltInType,
  properties: JsonObject,
  secrets: string[],
): Promise<string[]> {
  const given = { ...properties, ...Object.fromEntries(secrets.map(name => [name, 'hidden'])) }
  const problems = await type.check(services, given, { at: '', complete: true })
  return Object.keys(properties).filter(
    name => !type.properties.get(name)?.required && problems.some(({ path }) => isBelow(path, name)),
  )
}

/**
 * Sorts resources by their references. A deploy resolves a cycle by properties that it sets later; in another cycle, some references are
 * `broken`: they become parameters.
 */
function orderDrafts(drafts: ReadonlyMap<string, Draft>): { order: string[]; broken: Set<string> } {
  const references = new Map(
    [...drafts].map(([id, { type, properties }]): [string, PropertyReferences[]] => [
      id,
      Object.entries(properties).flatMap(([property, value]) => {
        const others = idsIn(JSON.stringify(value)).filter(other => other !== id && drafts.has(other))
        return others.length > 0 ? [{ property, others, isDeferrable: type.declared.later.includes(property) }] : []
      }),
    ]),
  )
  const { deferred } = deferredOrder(references)
  const depends = new Map(
    [...references].map(([id, own]) => [
      id,
      new Set(own.flatMap(({ property, others }) => (deferred.get(id)?.has(property as string) ? [] : others))),
    ]),
  )
  const broken = cyclicReferences(depends)
  const acyclic = [...depends].map(([id, others]): [string, string[]] => [
    id,
    [...others].filter(other => !broken.has(`${id} ${other}`)),
  ])
  return { order: dependencyOrder(new Map(acyclic)).order, broken }
}

/** Properties that name a resource, the first one of those that it has. */
const NAMING = ['name', 'title', 'path', 'filename', 'external_id', 'key', 'model', 'metric', 'resource_type']

function logicalIdOf({ type, live }: SelectedResource): string {
  const words = joinWords(...type.name.split('_'))
  const name = NAMING.map(property => live.values[property]).find(value => typeof value === 'string')
  return name === undefined ? words : joinWords(words, name as string)
}

/** Whether a template would read a part of a value as an expression. */
const hasExpressions = (value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (expressionOf(value) !== null || Object.values(value).some(hasExpressions))

/** Replaces the IDs in a value by expressions. */
function withReferences(value: unknown, reference: (id: string) => JsonObject | null, parameters: Parameters): unknown {
  const walk = (node: unknown): unknown => {
    if (typeof node === 'string') return withExpressions(node)
    if (typeof node !== 'object' || node === null || node instanceof ExactNumber) return node
    if (Array.isArray(node)) return node.map(walk)
    return Object.fromEntries(Object.entries(node).map(([key, item]) => [key, walk(item)]))
  }
  const withExpressions = (text: string): unknown => {
    const ids = new Set(idsIn(text))
    if (ids.has(text)) return reference(text) ?? externalParameter(text) ?? text
    const secrets = new Set([...text.matchAll(SECRET)].map(([, id]) => id))
    const expressions = new Map(
      [...ids].flatMap((id): [string, JsonObject][] => {
        const expression = reference(id) ?? (secrets.has(id) ? externalParameter(id) : null)
        return expression ? [[id, expression]] : []
      }),
    )
    if (expressions.size === 0) return text
    const placeholder = (id: string): string | undefined => {
      const expression = expressions.get(id)
      return expression && `\${${expression.ref ?? expression.param}}`
    }
    // A literal `${name}` would be substituted.
    const escaped = text.replace(/\$(?=\{[A-Za-z][A-Za-z0-9_]{0,127}\})/g, () => `\${${parameters.dollar()}}`)
    return { sub: replaceIds(escaped, id => placeholder(id) ?? id) }
  }
  const externalParameter = (id: string): JsonObject | null => {
    const kind = kinds.all().find(each => isIdOf(each, id))
    return kind ? { param: parameters.of(id, joinWords(...kind.name.split('_'))) } : null
  }
  return walk(value)
}

/** The parameters of an exported template. */
class Parameters {
  readonly #names: UniqueNames
  readonly #declared: Record<string, Parameter & { default?: string }> = {}
  readonly #values: Record<string, string> = {}
  readonly #byId = new Map<string, string>()
  #dollar: string | undefined

  constructor(names: UniqueNames) {
    this.#names = names
  }

  add(name: string, parameter: Parameter & { default?: string }): string {
    const unique = this.#names.add(name)
    this.#declared[unique] = parameter
    return unique
  }

  /** Returns the parameter for the ID of a resource that is not exported, or is exported after the reference. */
  of(id: string, resourceName: string): string {
    const existing = this.#byId.get(id)
    if (existing !== undefined) return existing
    const name = this.add(`${resourceName}Id`, { description: `ID of ${resourceName}` })
    this.#byId.set(id, name)
    this.#values[name] = id
    return name
  }

  /** Returns the parameter for a literal dollar sign in a `sub`. */
  dollar(): string {
    this.#dollar ??= this.add('Dollar', { description: 'Dollar sign', default: '$' })
    return this.#dollar
  }

  declared(): JsonObject {
    return this.#declared
  }

  values(): Record<string, string> {
    return this.#values
  }
}

/** Maximum length of a name. */
const MAX_NAME_LENGTH = 100

/** Returns words as one name, such as `AgentSupportDesk`. */
const joinWords = (...words: string[]): string =>
  words
    .flatMap(word => word.normalize('NFKD').split(/[^A-Za-z0-9]+/))
    .filter(word => word !== '')
    .map(word => word[0].toUpperCase() + word.slice(1))
    .join('')
    .slice(0, MAX_NAME_LENGTH)

/** Makes names unique by number suffixes. */
class UniqueNames {
  readonly #used = new Set<string>()

  add(name: string): string {
    let unique = name
    for (let count = 2; this.#used.has(unique); count++) unique = `${name}_${count}`
    this.#used.add(unique)
    return unique
  }
}
